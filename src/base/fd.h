/* fd: descriptors that close themselves, and small whole-file helpers.
 *
 * Every descriptor in this project is O_CLOEXEC from birth. close() is never retried: on Linux the
 * descriptor is gone even when it returns EINTR. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pd_err;

/* Closes *fd if it is open and makes it -1; errno is kept. */
void fd_done(int *fd);
#define auto_fd __attribute__((cleanup(fd_done))) int

/* Gives up ownership: returns *fd and makes it -1. */
int fd_take(int *fd);

/* Reads a small file below `dir` (AT_FDCWD for a plain path) into `out`, which gets a NUL.
 * Returns the length or -errno; a file that does not fit is -EFBIG. */
ssize_t fd_read_file(int dir, const char *path, char *out, size_t size);
/* Writes `text` to an existing file in one write (kernel files want it so). 0 or -errno. */
int fd_write_file(int dir, const char *path, const char *text);
/* Writes all of it; for blocking descriptors. 0 or -errno. */
int fd_write_all(int fd, const void *data, size_t len);

int fd_set_nonblock(int fd);
/* Can `n` descriptors more be opened? `any` is one that is open. Two system calls while there are
 * many; the open ones are counted when there are few. */
int fd_spare(int any, unsigned n);
/* How many descriptors this process may have. */
uint64_t fd_limit(void);
/* Raises that as far as it may: to the hard limit, and root's to fs.nr_open. `most`: no further
 * than this, and lowered to it if it is more; 0: no bound. Returns the limit that holds then. */
uint64_t fd_limit_raise(uint64_t most);

/* Fills `out` from the kernel's random source. Cannot fail once the machine has booted. */
void random_bytes(void *out, size_t len);
