"""Library for Mayhem's system tests: real agents, real targets, real deaths.

    from mayhem_test import Agent, Sleeper, Nginx, Redis, StateDir, wait_until, is_stopped

Nothing here sleeps to synchronise; everything polls a condition with a limit.
"""

from .agent import Agent, RpcError, SessionEnded
from .procs import (Nginx, Proc, Redis, Reuser, Sleeper, http_get, identity, is_alive, is_stopped,
                    redis_ping, start_ticks, thread_states)
from .records import Lease, leases, read_log
from .sandbox import (StateDir, User, agent_path, build_dir, cgroup_marks, cgroup_mounts, helper,
                      leftovers, mayhem_path, run_agent, run_mayhem, v1_only)
from .waiting import reap_orphans, wait_until

__all__ = [
    "Agent", "RpcError", "SessionEnded",
    "Nginx", "Proc", "Redis", "Reuser", "Sleeper", "http_get", "identity", "is_alive",
    "is_stopped", "redis_ping", "start_ticks", "thread_states",
    "Lease", "leases", "read_log",
    "StateDir", "User", "agent_path", "build_dir", "cgroup_marks", "cgroup_mounts", "helper",
    "leftovers", "mayhem_path", "run_agent", "run_mayhem", "v1_only",
    "reap_orphans", "wait_until",
]
