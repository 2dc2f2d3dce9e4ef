/* fds: no descriptor of init's may reach what it starts. */
#pragma once

/* Closes all from `first` on. Allocates nothing. 0, or -errno when some may be left. */
int fds_close_from(unsigned first);
