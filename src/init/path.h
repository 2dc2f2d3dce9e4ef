/* path: finding files by the paths that clients name.
 *
 * Every path is resolved by openat2 with RESOLVE_NO_MAGICLINKS, or by a walk that keeps the same
 * rules, as the sandbox's user: ordinary
 * symbolic links lead where they lead in the sandbox, the links of /proc that jump to another
 * process's root or descriptors do not. Nothing is opened for reading or writing before its type is
 * known, because opening a FIFO or a device does something already. */
#pragma once

#include "base/fd.h"
#include "init/worker.h"

#include <limits.h>
#include <sys/stat.h>

/* Turns errno into an error about this path: the code, what is wrong, what would help. -1. */
int path_fail(struct pd_err *e, const char *path);
/* "'PATH' is a FIFO, not a regular file". -1. */
int path_fail_type(struct pd_err *e, const char *path, mode_t mode, const char *wanted);
/* The type of a file, in words with their article. */
const char *path_type_text(mode_t mode);

/* The absolute path without "//", "/./" and a slash at its end; for records. Free it. NULL without
 * memory. */
char *path_absolute(const struct worker_job *w, const char *path);
/* Refuses what is no path: "", and a relative one when there is no directory to start from. */
int path_check(const struct worker_job *w, const char *path, struct pd_err *e);

/* openat2 with RESOLVE_NO_MAGICLINKS | `resolve`, O_CLOEXEC, O_NOCTTY, O_NONBLOCK. Descriptor or
 * -errno. */
int path_openat(int dir, const char *path, int flags, mode_t mode, uint64_t resolve);
/* The same by a walk, where there is no openat2 or a filter refuses it; path_walk.c. `flags` are
 * complete. Knows RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS; others are EOPNOTSUPP. */
int path_walk(int dir, const char *path, int flags, mode_t mode, uint64_t resolve);
/* An O_PATH descriptor of the file at `path`, following a last link or not, and what it is. */
int path_find(const struct worker_job *w, const char *path, int follow, struct stat *ret,
              struct pd_err *e);
/* Opens what an O_PATH descriptor stands for. Descriptor or -errno. */
int path_reopen(int fd, int flags);
/* /proc/self/fd/N, for the calls that take no O_PATH descriptor. */
#define PATH_OF_FD 32
void path_of_fd(int fd, char out[PATH_OF_FD]);
/* Opens a regular file for reading; nothing else. */
int path_open_file(const struct worker_job *w, const char *path, struct stat *ret,
                   struct pd_err *e);
/* Opens a directory for reading; nothing else. */
int path_open_dir(const struct worker_job *w, const char *path, struct stat *ret, struct pd_err *e);

/* Where a file is or would be: its directory, and its name in there. */
struct place {
    int dir; /* O_PATH */
    char name[NAME_MAX + 1];
    int exists;
    struct stat st; /* of the file itself, if it exists */
};
#define PLACE_INIT ((struct place){.dir = -1})
void place_done(struct place *p);
#define auto_place __attribute__((cleanup(place_done))) struct place

#define PLACE_FOLLOW 1 /* a last link: where it points to */
#define PLACE_MKDIRS 2 /* makes the directories that are missing */
#define PLACE_SLASH  4 /* slashes at the end are fine: it is or will be a directory */
int path_place(const struct worker_job *w, const char *path, int flags, struct place *ret,
               struct pd_err *e);

/* Reads a symbolic link of a directory, or of the O_PATH descriptor itself with name "". "" when it
 * cannot be read. */
void path_readlink(int dir, const char *name, char out[PATH_MAX]);
