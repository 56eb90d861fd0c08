/* SPDX-License-Identifier: Apache-2.0 */
#include "os/kernel.h"

#include <linux/capability.h>
#include <sys/utsname.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "os/kernel_abi.h"
#include "os/pidfd.h"

static bool has_capability(unsigned cap)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};

	if (syscall(SYS_capget, &head, data) < 0)
		return false;
	return data[cap / 32].effective & 1u << cap % 32;
}

void kernel_probe(struct kernel *ret)
{
	struct kernel k = {0};
	struct utsname u;
	_close_ int self = -1;
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);

	if (uname(&u) == 0) {
		text_copy(k.release, sizeof(k.release), u.release);
		text_copy(k.arch, sizeof(k.arch), u.machine);
		text_copy(k.hostname, sizeof(k.hostname), u.nodename);
	}
	if (pidfd_open_pid(getpid(), &self) == 0)
		k.pidfs = pidfd_inode(self) != 0;
	k.landlock = abi > 0 ? (int)abi : 0;
	k.userns = access("/proc/self/ns/user", F_OK) == 0;
	k.sys_resource = has_capability(CAP_SYS_RESOURCE);
	*ret = k;
}

json_t *kernel_to_json(const struct kernel *k)
{
	return json_pack("{s:s, s:s, s:b, s:b, s:i, s:b}", "release", k->release, "arch", k->arch,
		"pidfs", k->pidfs, "clone3_cgroup", k->clone3_cgroup, "landlock", k->landlock,
		"userns", k->userns);
}
