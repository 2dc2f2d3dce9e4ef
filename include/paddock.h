/* paddock.h: sandboxes in your own process, without a server.
 *
 *     struct paddock_error e;
 *     struct paddock *p = paddock_open(NULL, &e);
 *     struct paddock_sandbox *s = p ? paddock_create(p, NULL, &e) : NULL;
 *     struct paddock_command c = {.size = sizeof c, .command = "echo $((6 * 7))"};
 *     struct paddock_result r = {.size = sizeof r};
 *     if (s && paddock_exec(s, &c, &r, &e) == 0)
 *         printf("%d: %s", r.exit_code, r.out);
 *     paddock_result_done(&r);
 *     paddock_release(s);
 *     paddock_close(p);
 *
 * Link with -lpaddock (pkg-config paddock). docs/libpaddock.md is the guide; this is the manual.
 *
 * Rules that hold for everything here:
 *
 *   Threads     Any thread may call any function on any handle, also at the same time. Nothing is
 *               bound to the thread that made it.
 *   The host    The library never exits, prints, changes signal handlers or the signal mask that
 *               you see, and never forks: it starts the program `paddock` by posix_spawn(3), which
 *               holds the sandboxes and ends with your process, however that ends. It has a few
 *               threads of its own, with all signals blocked. A process that you fork has no use of
 *               the handles: it opens the library again.
 *   Failure     Functions return 0 or a handle, and -1 or NULL on failure, which is then described
 *               in *e (which may be NULL). On failure nothing else is written.
 *   Ownership   Strings and bytes that you pass are copied or used only during the call. What is
 *               given to you says how it is freed. Freeing NULL is fine.
 *   Time        Calls that wait have a bound of their own, named at each; `cancel`, where there is
 *               one, ends them before that.
 *   Growth      A struct begins with `size`: set it to sizeof, zero the rest. So a program that was
 *               compiled with an older header goes on working: what it does not know is left
 *               out. Fields are only ever appended; zero means what it always meant. */
#ifndef PADDOCK_H
#define PADDOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef PADDOCK_API
#define PADDOCK_API
#endif

/* The interface that this header describes. A library with another number is another library, with
 * another soname. */
#define PADDOCK_ABI 1

/* Of the library that was loaded: "0.1.0", and its PADDOCK_ABI. */
PADDOCK_API const char *paddock_version(void);
PADDOCK_API unsigned paddock_abi(void);

struct paddock;         /* the library, opened; its sandboxes */
struct paddock_sandbox; /* a sandbox, held by you: it may have ended meanwhile */
struct paddock_process; /* a command in a sandbox, held by you */
struct paddock_writer;  /* a file that is being written */
struct paddock_cancel;  /* ends calls that wait */

/* Why something failed. */
struct paddock_error {
    char code[32];     /* stable, as in the HTTP API: "not_found", "timeout", "session_lost" ... */
    char message[352]; /* for people: what was wrong, with the value, and what to do about it */
    int32_t retryable; /* the same call may succeed later */
    int32_t sys;       /* errno of a system call that failed, or 0 */
    uint32_t reserved[6];
};

/* Frees what a function gave with the words "to be freed". */
PADDOCK_API void paddock_free(void *memory);

/* ---- the library ---- */

struct paddock_options {
    size_t size;
    const char *program;      /* `paddock`. NULL: PADDOCK_PROGRAM in the environment, beside this
                               * library, in the bin of its prefix, in PATH */
    const char *spool_dir;    /* a directory in which output is kept, in one of its own. NULL:
                               * XDG_RUNTIME_DIR, /dev/shm, TMPDIR, /tmp: what can be written */
    uint32_t max_sandboxes;   /* at a time; more wait. 0: 1000 */
    uint32_t pool;            /* sandboxes kept ready, for creations in microseconds. 0: none */
    uint64_t idle_timeout_ms; /* of sandboxes that ask for none. 0: 30 minutes */
    uint64_t max_life_ms;     /* likewise. 0: a day */
    /* The most that one sandbox may ask for. 0: half of the machine's memory, an eighth of its pids
     * and at most 4096, its cores (thousandths), no ceiling of files */
    uint64_t max_memory, max_pids, max_cpu_milli, max_disk;
};

/* Starts the program that holds the sandboxes, and waits until it answers (5 s at most). `o` may be
 * NULL. Fails with "not_found" when there is no program, "isolation" or "unsupported" when this
 * machine cannot have sandboxes (`paddock doctor` tells more). */
PADDOCK_API struct paddock *paddock_open(const struct paddock_options *o, struct paddock_error *e);
/* Ends every sandbox, and waits for that. Other threads' calls end with "shutting_down". Handles
 * stay valid until they are released, and all calls on them fail; the last one to be released
 * frees the rest. */
PADDOCK_API void paddock_close(struct paddock *p);

struct paddock_info {
    size_t size;
    char program[512];
    char isolation[16]; /* the best that sandboxes have here: "full" or "basic" */
    char missing[256];  /* why it is not "full", and what to do; or "" */
    uint32_t sandboxes; /* that live */
    int32_t keeper_pid;
    char providers[256]; /* what sandboxes can be made of, the default first: names with ", " */
};
PADDOCK_API int paddock_get_info(struct paddock *p, struct paddock_info *ret,
                                 struct paddock_error *e);

/* One chance to end calls from another thread: paddock_cancel makes every call that was given this
 * handle return with "cancelled", those that come later as well. Free it when no call uses it. */
PADDOCK_API struct paddock_cancel *paddock_cancel_new(struct paddock_error *e);
PADDOCK_API void paddock_cancel(struct paddock_cancel *c);
PADDOCK_API void paddock_cancel_free(struct paddock_cancel *c);

/* ---- sandboxes ---- */

struct paddock_sandbox_options {
    size_t size;
    const char *user_id, *thread_id;       /* whose it is, both or none; at most 128 bytes */
    const char *template_name;             /* "default", "base", "restricted". NULL: "default" */
    const char *profile;                   /* "strict", "dev", "restricted". NULL: the template's */
    const char *metadata;                  /* a JSON object of strings, or NULL */
    const char *policy;                    /* "open", "restricted" or JSON (docs/policy.md), NULL */
    const char *const *env;                /* "NAME=VALUE", with NULL behind the last; or NULL */
    const char *cwd;                       /* NULL: /workspace */
    uint64_t memory, pids, cpu_milli;      /* limits; 0: 512 MiB, 256, 1000 (one core) */
    uint64_t disk, files;                  /* 0: 1 GiB, 100000. Files are in memory */
    uint64_t idle_timeout_ms, max_life_ms; /* 0: as the library was opened with */
    uint64_t queue_timeout_ms;             /* how long to wait for a place. 0: 30 s */
    int32_t auto_retry;                    /* of get_or_create: one that is gone is made anew */
    const char *provider;                  /* one of paddock_info's. NULL or "auto": the first */
};

/* Makes a sandbox. `o` may be NULL. Waits for a place in the queue, and 30 s at most for the
 * sandbox. The handle is yours: paddock_release. */
PADDOCK_API struct paddock_sandbox *
paddock_create(struct paddock *p, const struct paddock_sandbox_options *o, struct paddock_error *e);
/* That of o->user_id and o->thread_id, or a new one (*ret_created). One that is gone is not made
 * anew silently: "session_lost" or "session_expired", unless auto_retry. */
PADDOCK_API struct paddock_sandbox *paddock_get_or_create(struct paddock *p,
                                                          const struct paddock_sandbox_options *o,
                                                          int *ret_created,
                                                          struct paddock_error *e);
/* One that is gone is found for an hour; what is done with it fails with the reason. */
PADDOCK_API struct paddock_sandbox *paddock_find(struct paddock *p, const char *id,
                                                 struct paddock_error *e);
PADDOCK_API struct paddock_sandbox *paddock_find_thread(struct paddock *p, const char *user_id,
                                                        const char *thread_id,
                                                        struct paddock_error *e);

struct paddock_filter {
    size_t size;
    const char *state; /* "running", "paused", "gone" ..., "all". NULL: all but gone */
    const char *user_id, *thread_id;
    const char *const *metadata; /* "KEY=VALUE" that all must hold, 8 at most, NULL behind; or NULL
                                  */
};
/* Calls `each` for every sandbox, oldest first, until it returns non-zero. The handle is the
 * library's and lives during the call. `f` may be NULL. */
PADDOCK_API int paddock_list(struct paddock *p, const struct paddock_filter *f,
                             int (*each)(void *arg, struct paddock_sandbox *s), void *arg,
                             struct paddock_error *e);
/* Lets go of the handle. The sandbox stays, until it ends by itself or with paddock_end. */
PADDOCK_API void paddock_release(struct paddock_sandbox *s);

struct paddock_sandbox_info {
    size_t size;
    char id[24];
    char user_id[136], thread_id[136]; /* "" when it has none */
    char template_name[64], profile[16], provider[32], isolation[16];
    char state[16]; /* creating, running, paused, stopping, gone */
    char end_cause[16], end_reason[200];
    char replaces[24];     /* the one in whose place auto_retry has made it */
    uint64_t created_ms;   /* all since the epoch, 0: not (yet) */
    uint64_t expires_ms;   /* when it ends if nobody uses it */
    uint64_t last_used_ms; /* */
    uint64_t ended_ms;
    uint64_t idle_timeout_ms, max_life_ms;
    uint64_t memory, pids, cpu_milli, disk, files;
    uint32_t processes; /* that run */
    int32_t recreated, from_pool;
};
PADDOCK_API int paddock_sandbox_get(struct paddock_sandbox *s, struct paddock_sandbox_info *ret,
                                    struct paddock_error *e);
/* As they were given, as JSON ("open" and "restricted" are plain words); to be freed. */
PADDOCK_API char *paddock_sandbox_metadata(struct paddock_sandbox *s);
PADDOCK_API char *paddock_sandbox_policy(struct paddock_sandbox *s);

/* Freezes every process; "unsupported" without cgroups. Meanwhile its clocks stand still and calls
 * fail with "paused". 10 s at most. */
PADDOCK_API int paddock_pause(struct paddock_sandbox *s, struct paddock_error *e);
PADDOCK_API int paddock_resume(struct paddock_sandbox *s, struct paddock_error *e);
/* A new idle time-out, and how long it lives from now on; 0: as before. Starts the idle clock anew
 * in any case. */
PADDOCK_API int paddock_extend(struct paddock_sandbox *s, uint64_t idle_timeout_ms,
                               uint64_t expires_in_ms, struct paddock_error *e);
/* Ends it with all that is in it, and waits for that (15 s at most). Ending one that is gone is
 * fine. `forget`: its user and thread may have another one then, without auto_retry. */
PADDOCK_API int paddock_end(struct paddock_sandbox *s, int forget, struct paddock_error *e);

struct paddock_usage {
    size_t size;
    uint64_t memory, memory_peak, cpu_usec, pids;
};
PADDOCK_API int paddock_usage(struct paddock_sandbox *s, struct paddock_usage *ret,
                              struct paddock_error *e);

/* The environment that the next command finds: a JSON object of strings, and the directory; both to
 * be freed. */
PADDOCK_API int paddock_env_get(struct paddock_sandbox *s, char **ret_json, char **ret_cwd,
                                struct paddock_error *e);
/* Sets "NAME=VALUE"s, removes names, changes the directory; each may be NULL. */
PADDOCK_API int paddock_env_set(struct paddock_sandbox *s, const char *const *set,
                                const char *const *unset, const char *cwd, struct paddock_error *e);

/* ---- commands ---- */

enum { PADDOCK_STDOUT = 0, PADDOCK_STDERR = 1 };

struct paddock_command {
    size_t size;
    const char *command;     /* a line for bash, whose directory and exported variables hold for
                              * the next one; or NULL and argv */
    const char *const *argv; /* a program and its arguments, with NULL behind the last */
    const char *const *env;  /* "NAME=VALUE", on top of the sandbox's; or NULL */
    const char *cwd;         /* NULL: the sandbox's */
    const char *user;        /* "user" (also NULL) or "root" */
    const void *input;       /* of exec: its stdin, at most 1 MiB; otherwise /dev/null */
    size_t input_len;
    uint64_t timeout_ms;           /* 0: none. Then it is ended with all its children */
    uint64_t file_size;            /* no file may become larger. 0: no limit */
    uint64_t output_max;           /* of exec: bytes of each stream in the result. 0: 1 MiB */
    uint64_t spool_max;            /* bytes of each stream that are kept. 0: 16 MiB */
    struct paddock_cancel *cancel; /* of exec: ends the command, too; or NULL */
    /* Of exec: called with every piece of output as it comes, on the calling thread, or NULL. When
     * it returns non-zero the command is ended. */
    int (*on_output)(void *arg, int stream, const void *data, size_t len);
    void *arg;
    /* Of start: */
    int32_t keep_stdin;    /* a pipe that can be written to */
    int32_t pty;           /* a terminal, whose output is all PADDOCK_STDOUT */
    uint32_t rows, cols;   /* 0: 24, 80 */
    int32_t back_pressure; /* at spool_max the command waits until it was read, instead of
                            * forgetting the oldest */
    /* A call with a key that was used before in this sandbox gives the command of the first time,
     * running or ended ("conflict" when it was another one). With a key, exec leaves the command
     * running when it is cancelled. NULL: none. */
    const char *key;
};

struct paddock_result {
    size_t size;
    int32_t exit_code; /* -1 when a signal ended it */
    int32_t signal;    /* that ended it, or 0 */
    int32_t timed_out;
    int32_t state;       /* of a command line: 1 when its directory and variables were kept, 0 when
                          * not; of argv: -1 */
    char stopped_by[16]; /* what ended it, if not itself: timeout, oom, pids, disk, output, syscall,
                          * killed, abandoned, sandbox; or "" */
    char *out, *err;     /* bytes with a NUL behind them; a stream longer than output_max is cut in
                          * the middle */
    size_t out_len, err_len;
    size_t out_head, err_head;     /* where it was cut: what follows is the end. 0 and not cut, or
                                    * the beginning is not there any more */
    uint64_t out_total, err_total; /* bytes that were written */
    uint64_t duration_us, cpu_usec, max_rss;
    int32_t pid;
    char process_id[40]; /* for paddock_find_process */
};

/* Runs a command to its end. Also one that fails or is ended counts as success: see the result. It
 * fails when nothing ran: "no_command", "not_executable", "policy", "paused", "session_lost" ...
 * After success, and only then, paddock_result_done frees what is in *ret. */
PADDOCK_API int paddock_exec(struct paddock_sandbox *s, const struct paddock_command *c,
                             struct paddock_result *ret, struct paddock_error *e);
PADDOCK_API void paddock_result_done(struct paddock_result *r);

/* Starts one in the background; returns when its pid is known (5 s at most). To be released. */
PADDOCK_API struct paddock_process *
paddock_start(struct paddock_sandbox *s, const struct paddock_command *c, struct paddock_error *e);
/* By its pid in the sandbox, or by the id that is never used again. Commands that have ended, also
 * those of exec, are remembered: the last 128. To be released. */
PADDOCK_API struct paddock_process *
paddock_find_process(struct paddock_sandbox *s, const char *pid_or_id, struct paddock_error *e);
/* As paddock_list. */
PADDOCK_API int paddock_each_process(struct paddock_sandbox *s,
                                     int (*each)(void *arg, struct paddock_process *p), void *arg,
                                     struct paddock_error *e);
/* The command goes on. */
PADDOCK_API void paddock_process_release(struct paddock_process *p);

struct paddock_process_info {
    size_t size;
    char id[40];
    int32_t pid, running;
    int32_t exit_code, signal, timed_out; /* as in paddock_result; exit_code -1 while it runs */
    int32_t state;
    int32_t pty, background, stdin_open;
    char stopped_by[16];
    char command[256]; /* for people, cut */
    uint64_t started_ms, ended_ms;
    uint64_t duration_us, cpu_usec, max_rss;
    uint64_t out_bytes, err_bytes; /* written so far */
    uint64_t out_first, err_first; /* the oldest that are still kept */
};
PADDOCK_API int paddock_process_get(struct paddock_process *p, struct paddock_process_info *ret,
                                    struct paddock_error *e);
/* Reads what the stream holds from `offset` on: bytes, 0 when there is nothing (yet), -1. Does not
 * wait. An offset that was forgotten is "invalid". */
PADDOCK_API ssize_t paddock_process_read(struct paddock_process *p, int stream, uint64_t offset,
                                         void *out, size_t size, struct paddock_error *e);
/* Waits until a stream is longer than its offset, or the command has ended: 1. 0 when the time is
 * over. Offsets of UINT64_MAX wait for the end alone. `timeout_ms` UINT64_MAX: as long as it takes.
 * `cancel` may be NULL. */
PADDOCK_API int paddock_process_wait(struct paddock_process *p, uint64_t out_offset,
                                     uint64_t err_offset, uint64_t timeout_ms,
                                     struct paddock_cancel *cancel, struct paddock_error *e);
/* To its first process. SIGKILL goes to all its children, too, and is waited for (1 s). */
PADDOCK_API int paddock_process_signal(struct paddock_process *p, int signal,
                                       struct paddock_error *e);
/* Bytes to its stdin or terminal; waits for room as long as `timeout_ms`. */
PADDOCK_API int paddock_process_write(struct paddock_process *p, const void *data, size_t len,
                                      uint64_t timeout_ms, struct paddock_error *e);
PADDOCK_API int paddock_process_close_stdin(struct paddock_process *p, struct paddock_error *e);
PADDOCK_API int paddock_process_resize(struct paddock_process *p, unsigned rows, unsigned cols,
                                       struct paddock_error *e);

/* ---- code contexts ----
 *
 * A context is an interpreter that stays, with its variables; a cell is a piece of code that runs
 * in one. docs/contexts.md is the guide. A context is named by its id, or by a language: its
 * default context, which is made when it is first used. What is told of contexts and cells is JSON,
 * the same as over HTTP: strings that are given out are to be freed by paddock_free. */

struct paddock_context_options {
    size_t size;
    const char *language;   /* NULL: "python" */
    const char *cwd;        /* NULL: the sandbox's */
    const char *name;       /* of your own, or NULL */
    const char *const *env; /* "NAME=VALUE"s with NULL behind; or NULL */
};

/* Makes a context and starts it. "unsupported" when the sandbox does not have the language: the
 * message says what to install. `ret_json`: its description, an object; or NULL. */
PADDOCK_API int paddock_context_create(struct paddock_sandbox *s,
                                       const struct paddock_context_options *o, char **ret_json,
                                       struct paddock_error *e);
/* All of them, oldest first: an array. */
PADDOCK_API int paddock_context_list(struct paddock_sandbox *s, char **ret_json,
                                     struct paddock_error *e);
/* Starts one anew, without its variables; what runs or waits in it is ended. `ret_json`: its
 * description, or NULL. */
PADDOCK_API int paddock_context_restart(struct paddock_sandbox *s, const char *context,
                                        char **ret_json, struct paddock_error *e);
/* Another context with all the variables that this one has now: `ret_json` describes it. It must be
 * idle ("conflict"), and of a language that can be forked, as Python can ("unsupported"). Threads
 * are not in the new one: where some run it is refused, unless `force`. */
PADDOCK_API int paddock_context_fork(struct paddock_sandbox *s, const char *context, int force,
                                     char **ret_json, struct paddock_error *e);
/* Takes back the last cell that ran with `keep_before`: variables are as before it, files are not.
 */
PADDOCK_API int paddock_context_undo(struct paddock_sandbox *s, const char *context,
                                     char **ret_json, struct paddock_error *e);
/* Interrupts the cell that runs, with its children; the variables stay. 1; 0 when none runs. */
PADDOCK_API int paddock_context_interrupt(struct paddock_sandbox *s, const char *context,
                                          struct paddock_error *e);
/* Ends one, with what runs or waits in it. */
PADDOCK_API int paddock_context_delete(struct paddock_sandbox *s, const char *context,
                                       struct paddock_error *e);

struct paddock_cell {
    size_t size;
    const char *context; /* id or language; NULL: "python" */
    const char *code;
    size_t code_len;               /* 1 MiB at most */
    const char *const *env;        /* for this cell alone; or NULL */
    uint64_t timeout_ms;           /* then it is interrupted, and 5 s later killed; 0: none */
    struct paddock_cancel *cancel; /* interrupts it, too; or NULL */
    /* Called with every event as it comes, on the calling thread: one JSON object with `type`:
     * start, stdout, stderr, result, error, end. When it returns non-zero the cell is
     * interrupted and the call fails with "cancelled". */
    int (*on_event)(void *arg, const char *json, size_t len);
    void *arg;
    int32_t keep_before; /* so that paddock_context_undo can take it back */
};

/* Runs a cell to its end; waits for its turn when others run in the context. Also one that raises
 * an exception, or whose interpreter dies, counts as success: the events tell. */
PADDOCK_API int paddock_run_cell(struct paddock_sandbox *s, const struct paddock_cell *c,
                                 struct paddock_error *e);

/* ---- files ----
 *
 * A relative path is below /workspace. `user` is "user" (also NULL) or "root". Names are bytes. A
 * sandbox that says nothing for 60 s is given up ("timeout"); an answer in entries may take 10
 * minutes. */

struct paddock_entry {
    size_t size_of_struct; /* what this library knows of it */
    const char *path;      /* lives during the callback */
    const char *target;    /* of a symbolic link, or "" */
    char type[16];         /* file, dir, symlink, fifo, socket, device */
    uint32_t mode;         /* permissions */
    uint32_t uid, gid;
    uint64_t size;
    int64_t mtime_ns; /* since the epoch */
};
/* What a call tells about an entry. Non-zero ends a list. */
typedef int (*paddock_entry_fn)(void *arg, const struct paddock_entry *entry);

/* Reads up to `length` bytes from `offset` on; *ret is to be freed, and has a NUL behind it.
 * Behind the end of the file: 0 bytes. `ret_size` (may be NULL): that of the file. "too_large" when
 * there are more than 1 GiB to read. */
PADDOCK_API int paddock_file_read(struct paddock_sandbox *s, const char *path, const char *user,
                                  uint64_t offset, uint64_t length, struct paddock_cancel *cancel,
                                  void **ret, size_t *ret_len, uint64_t *ret_size,
                                  struct paddock_error *e);

struct paddock_write_options {
    size_t size;
    const char *user;
    int32_t mode;   /* permissions, such as 0644; 0: those of the file that is there, or 0644 */
    int32_t mkdirs; /* makes the directories above it */
};
/* Writes a file, whole or not at all: it takes its name at the end. `o` and `each` may be NULL. */
PADDOCK_API int paddock_file_write(struct paddock_sandbox *s, const char *path, const void *data,
                                   size_t len, const struct paddock_write_options *o,
                                   paddock_entry_fn each, void *arg, struct paddock_error *e);
/* The same in pieces, by one thread at a time. finish with `commit` 0 gives it up; it frees the
 * writer whatever comes of it. */
PADDOCK_API struct paddock_writer *paddock_writer_open(struct paddock_sandbox *s, const char *path,
                                                       const struct paddock_write_options *o,
                                                       struct paddock_error *e);
PADDOCK_API int paddock_writer_write(struct paddock_writer *w, const void *data, size_t len,
                                     struct paddock_error *e);
PADDOCK_API int paddock_writer_finish(struct paddock_writer *w, int commit, paddock_entry_fn each,
                                      void *arg, struct paddock_error *e);

/* Calls `each` with every entry below a directory, depth first, names in byte order. `depth` 1: the
 * directory alone. */
PADDOCK_API int paddock_file_list(struct paddock_sandbox *s, const char *path, const char *user,
                                  unsigned depth, struct paddock_cancel *cancel,
                                  paddock_entry_fn each, void *arg, struct paddock_error *e);
/* These tell about the entry that they looked at or made; `each` may be NULL. */
PADDOCK_API int paddock_file_stat(struct paddock_sandbox *s, const char *path, const char *user,
                                  paddock_entry_fn each, void *arg, struct paddock_error *e);
/* `parents`: makes those above it, and it may exist. `mode` 0: 0755. */
PADDOCK_API int paddock_file_mkdir(struct paddock_sandbox *s, const char *path, const char *user,
                                   int parents, unsigned mode, paddock_entry_fn each, void *arg,
                                   struct paddock_error *e);
PADDOCK_API int paddock_file_move(struct paddock_sandbox *s, const char *from, const char *to,
                                  const char *user, int overwrite, paddock_entry_fn each, void *arg,
                                  struct paddock_error *e);
PADDOCK_API int paddock_file_copy(struct paddock_sandbox *s, const char *from, const char *to,
                                  const char *user, int recursive, struct paddock_cancel *cancel,
                                  paddock_entry_fn each, void *arg, struct paddock_error *e);
PADDOCK_API int paddock_file_chmod(struct paddock_sandbox *s, const char *path, const char *user,
                                   unsigned mode, paddock_entry_fn each, void *arg,
                                   struct paddock_error *e);
PADDOCK_API int paddock_file_remove(struct paddock_sandbox *s, const char *path, const char *user,
                                    int recursive, struct paddock_cancel *cancel,
                                    struct paddock_error *e);

struct paddock_search {
    size_t size;
    const char *path; /* where; NULL: /workspace */
    const char *user;
    const char *pattern; /* at most 4096 bytes */
    const char *mode;    /* "literal" (also NULL), "regex" (POSIX extended), "name" (of files) */
    const char *glob;    /* only these files; or NULL */
    const char *replacement; /* of replace; at most 64 KiB */
    uint32_t limit;          /* of search: matches. 0: 1000 */
    int32_t ignore_case;     /* of search */
    int32_t dry_run;         /* of replace: says what would be done */
    struct paddock_cancel *cancel;
};
struct paddock_match {
    size_t size_of_struct;
    const char *path;
    uint64_t line, column; /* from 1; 0 when the name was searched */
    const char *text;      /* the line; long ones are cut */
};
/* One match per line. *ret_truncated: there may be more than `limit`. */
PADDOCK_API int paddock_file_search(struct paddock_sandbox *s, const struct paddock_search *q,
                                    int (*each)(void *arg, const struct paddock_match *m),
                                    void *arg, int *ret_truncated, struct paddock_error *e);
/* Each file is replaced at once, or not. Tells of those in which something was. */
PADDOCK_API int paddock_file_replace(struct paddock_sandbox *s, const struct paddock_search *q,
                                     int (*each)(void *arg, const char *path, uint64_t count),
                                     void *arg, struct paddock_error *e);
/* Calls `each` for every change below a directory, until it returns non-zero, or the cancel handle
 * is used ("cancelled"). `event`: created, modified, removed, moved (from `path` to `to`),
 * attributes, overflow (events were lost: look again); the first is "ready", of the directory
 * itself: from then on nothing is missed. */
PADDOCK_API int paddock_file_watch(struct paddock_sandbox *s, const char *path, const char *user,
                                   int recursive, struct paddock_cancel *cancel,
                                   int (*each)(void *arg, const char *event, const char *path,
                                               const char *to, int is_dir),
                                   void *arg, struct paddock_error *e);

/* ---- ports ---- */

/* The TCP ports on which something listens. */
PADDOCK_API int paddock_each_port(struct paddock_sandbox *s,
                                  int (*each)(void *arg, unsigned port, const char *address,
                                              int pid, const char *command),
                                  void *arg, struct paddock_error *e);
/* Connects to a port of the sandbox's loopback (5 s at most): a connected stream socket, yours to
 * close. "bad_gateway": nothing listens there. */
PADDOCK_API int paddock_dial(struct paddock_sandbox *s, unsigned port, struct paddock_error *e);

#ifdef __cplusplus
}
#endif

#endif
