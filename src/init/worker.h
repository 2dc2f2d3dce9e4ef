/* worker: operations on files and ports that run inside the jail, as the sandbox's user.
 *
 * A worker is a child of init, started by EXEC with EXEC_WORKER. It has become the user as a
 * command does, in the command's cgroup, and has three descriptors: 0 input, 1 answers (records,
 * and for some operations raw bytes), 2 the word to commit. Everything it does, a program of the
 * user's could do as well; so nothing here guards the host, and the host believes nothing that it
 * says.
 *
 * docs/workers.md has the table of operations. Each is a function that answers by worker_put and
 * returns 0, or -1 with the reason, which becomes an ERROR record. */
#pragma once

#include "base/err.h"
#include "wire/record.h"

#include <sys/stat.h>

/* The call that this worker does, and its answer. */
struct worker_job {
    const char *cwd; /* where relative paths start */
    int cwd_ok;      /* it could be entered */
    char **argv;     /* [0] is the operation */
    unsigned argc;
    struct buf out; /* records that were not written yet */
    int holds;      /* they wait there for as long as there is room; nobody else writes them */
};

/* Runs the operation in argv (NULL-terminated) and exits: 0, or 1 after an ERROR record. Never
 * returns: the memory is a copy of init's. */
_Noreturn void worker_main(const char *cwd, char **argv);
/* For a worker that could not even start: tells why on `fd` and exits. */
_Noreturn void worker_refuse(int fd, const struct pd_err *why);

/* Adds a record to the answer. A record that cannot be told (its path is too long) is left out. */
void worker_put(struct worker_job *w, const struct record *r);
/* Writes what was put. Waits for the reader; when that is gone SIGPIPE ends the worker. */
void worker_flush(struct worker_job *w);
/* An ENTRY of the file that `st` describes. `target` may be NULL. */
void worker_put_entry(struct worker_job *w, const struct stat *st, const char *path,
                      const char *target);
/* The contents of such an ENTRY. `target` as above. */
struct record_entry worker_entry(const struct stat *st, const char *path, const char *target);
/* A DETAIL of the same; `dir` and `name` lead to it. For lists that somebody made large on purpose
 * there is no cheaper way: it takes some ten system calls. */
void worker_put_detail(struct worker_job *w, const struct stat *st, const char *path, int dir,
                       const char *name);
/* Waits for the word to commit on descriptor 2. -1 when the asker gave up or is gone. */
int worker_await_commit(struct pd_err *e);

/* Moves at most `len` bytes between descriptors, by splice where one is a pipe. Returns how many:
 * fewer at the end of the input; or -errno. */
int64_t worker_move(int from, int to, uint64_t len);

/* Parses the words of an operation; the error names `what`. */
int worker_number(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *ret,
                  struct pd_err *e);
int worker_flag(const char *what, const char *text, int *ret, struct pd_err *e);
/* The word at this place, a flag; 0 when there are not so many. */
int worker_last_flag(const struct worker_job *w, unsigned at, const char *what, int *ret,
                     struct pd_err *e);
int worker_mode(const char *text, mode_t max, mode_t *ret, struct pd_err *e);

/* worker_files.c */
int worker_stat(struct worker_job *w, struct pd_err *e);
int worker_read(struct worker_job *w, struct pd_err *e);
int worker_write(struct worker_job *w, struct pd_err *e);
int worker_mkdir(struct worker_job *w, struct pd_err *e);
int worker_rename(struct worker_job *w, struct pd_err *e);
int worker_chmod(struct worker_job *w, struct pd_err *e);
int worker_getxattr(struct worker_job *w, struct pd_err *e);
int worker_setxattr(struct worker_job *w, struct pd_err *e);
/* A file that takes its name, or another's place, at the word to commit: its contents are the
 * input. */
struct worker_new {
    const char *path;
    mode_t mode;
    int has_mode; /* else an existing file's, or 0644 */
    int mkdirs;
    uint64_t length;
    /* What must be there when it gets its name: a file of this time and size, or (MATCH_NONE) none.
     */
    enum { MATCH_ANY, MATCH_FILE, MATCH_NONE } match;
    int64_t match_mtime_ns;
    uint64_t match_size;
    int has_length;    /* the input must end behind `length` bytes */
    int is_writers;    /* the file is the writer's, whosever was there before; watchers are told */
    char **attributes; /* NAME, VALUE ..., and NULL; or NULL */
};
int worker_save(struct worker_job *w, const struct worker_new *n, struct pd_err *e);
/* worker_meta.c */
int worker_upload(struct worker_job *w, struct pd_err *e);
int worker_compose(struct worker_job *w, struct pd_err *e);
/* Gives a new file its attributes; NULL: none. */
int worker_attributes(int fd, const char *path, char **attributes, struct pd_err *e);
/* worker_walk.c */
int worker_list(struct worker_job *w, struct pd_err *e);
int worker_remove(struct worker_job *w, struct pd_err *e);
/* worker_digest.c */
int worker_digest(struct worker_job *w, struct pd_err *e);
/* worker_copy.c */
int worker_copy(struct worker_job *w, struct pd_err *e);
/* worker_search.c */
int worker_search(struct worker_job *w, struct pd_err *e);
int worker_replace(struct worker_job *w, struct pd_err *e);
/* worker_watch.c */
int worker_watch(struct worker_job *w, struct pd_err *e);
/* worker_ports.c */
int worker_dial(struct worker_job *w, struct pd_err *e);
int worker_join(struct worker_job *w, struct pd_err *e);
int worker_ports(struct worker_job *w, struct pd_err *e);

/* worker_ps.c */
int worker_ps(struct worker_job *w, struct pd_err *e);
/* worker_tar.c */
int worker_tar(struct worker_job *w, struct pd_err *e);
/* worker_untar.c */
int worker_untar(struct worker_job *w, struct pd_err *e);
int worker_layer(struct worker_job *w, struct pd_err *e);
