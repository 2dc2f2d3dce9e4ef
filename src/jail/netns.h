/* netns: a network of its own for each jail: a loopback device that is up, and nothing else. */
#pragma once

struct pd_err;

/* Makes a network namespace and returns its descriptor, or -1. The caller's own namespace is as
 * before, also on failure. `proc` is an open /proc. About 0.5 ms, so keepers make them in advance.
 */
int netns_create(int proc, struct pd_err *e);

/* Gives a sandbox a way out through a gate: furnishes the namespace *netns, or one that it makes
 * (-1), so that every TCP connection and every DNS question comes to the sockets ret[0] and ret[1].
 * They keep the namespace alive. PD_UNSUPPORTED, with what the kernel said, where it cannot be. */
int netns_gate_make(int proc, int *netns, int ret[2], struct pd_err *e);

/* The same for the network namespace of a process that runs, by its pidfd. */
int netns_gate_enter(int pidfd, int ret[2], struct pd_err *e);

/* Brings up the loopback device of the calling process's namespace. 0 or -errno. */
int netns_loopback_up(void);
