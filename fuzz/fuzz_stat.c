/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc/<pid>/stat and status. The kernel writes them, the process names
 * itself in them: what does not read exactly is refused, never guessed.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "os/procfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct proc_stat st = {.pid = -7};
	struct proc_status status = {.uid = 77};
	char *text = malloc(size + 1);

	memcpy(text, data, size);
	text[size] = '\0';
	if (procfs_parse_stat(text, size, &st) < 0) {
		if (st.pid != -7)
			abort();
	} else if (st.pid < 0 || strlen(st.comm) >= sizeof(st.comm) || !st.state) {
		abort();
	}
	if (procfs_parse_status(text, &status) < 0) {
		if (status.uid != 77)
			abort();
	} else if (status.ns_levels == 0 || status.ns_levels > 32) {
		abort();
	}
	free(text);
	return 0;
}
