/* fds: no descriptor of init's may reach what it starts. */
#pragma once

struct pd_err;

/* Closes all from `first` on. Allocates nothing. 0, or -errno when some may be left. */
int fds_close_from(unsigned first);
/* -1 where a filter refuses close: what is never closed never ends for whoever waits for that. */
int fds_need_close(struct pd_err *e);
