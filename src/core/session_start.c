/* How a command starts: it is entered into the session (a retry finds the one that is there), its
 * streams are made, its row is written if somebody relies on it, and the request goes to the
 * provider. What becomes of it is told by events. */
#include "core/session.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "policy/policy.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define PIPE_SIZE          (64u << 10)
#define FORK_SEND_PATIENCE (10 * NS_PER_S)
#define ENDING_PATIENCE    (5 * NS_PER_S)

void far_ends_done(struct far_ends *f)
{
    for (int i = 0; i < 4; i++)
        fd_done(&f->fd[i]);
}

int session_make_pipe(int *ret_near, int *ret_far, bool near_reads, struct pd_err *e)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return pd_fail_sys(e, "make a pipe");

    *ret_near = p[near_reads ? 0 : 1];
    *ret_far = p[near_reads ? 1 : 0];
    /* Ends are separate descriptions: the far one stays as programs expect it. A new pipe has no
     * other flags that would have to stay. */
    return fcntl(*ret_near, F_SETFL, O_NONBLOCK) < 0 ? pd_fail_sys(e, "set up a pipe") : 0;
}

/* Input that is known in advance: what fits a pipe is put into one; more is a file in memory that
 * can be neither changed nor enlarged. */
static int make_input(const void *data, size_t len, int *ret_far, struct pd_err *e)
{
    if (len <= PIPE_SIZE / 2) {
        auto_fd near = -1;
        if (session_make_pipe(&near, ret_far, false, e) < 0)
            return -1;
        return write(near, data, len) == (ssize_t)len ? 0 : pd_fail_sys(e, "fill a pipe");
    }

    auto_fd fd = memfd_create("stdin", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return pd_fail_sys(e, "make a file in memory");

    int r = fd_write_all(fd, data, len);
    /* Readable, and nothing else: not a program to run where others are not to be had. */
    if (r < 0 || fchmod(fd, 0444) < 0 || lseek(fd, 0, SEEK_SET) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return pd_fail_sys(e, "fill a file in memory");

    *ret_far = fd_take(&fd);
    return 0;
}

static int make_terminal(struct process *p, const struct process_request *r, struct far_ends *far,
                         struct pd_err *e)
{
    struct session *s = p->session;
    int master = -1, slave = -1, r1;

    rw_read(&s->box_use);
    r1 = s->box ? box_terminal(s->box, &master, &slave, e) : session_no_box(s, e);
    rw_release(&s->box_use);
    if (r1 < 0)
        return -1;

    p->streams[STREAM_OUT].source.fd = p->input = master;
    far->fd[0] = slave;
    far->fd[1] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
    far->fd[2] = fcntl(slave, F_DUPFD_CLOEXEC, 3);

    if (far->fd[1] < 0 || far->fd[2] < 0 || pipe2(p->via, O_CLOEXEC | O_NONBLOCK) < 0 ||
        fd_set_nonblock(master) < 0)
        return pd_fail_sys(e, "set up a terminal");
    return process_resize(p, r->rows ? r->rows : 24, r->cols ? r->cols : 80, e);
}

/* Requests to a driver come by a socket, so that descriptors can go in with them. Its near end has
 * shut down reading before the far one goes in: whatever the sandbox sends fails there, and neither
 * bytes nor descriptors of it are ever held for this end. */
static int make_driver_ends(struct process *p, struct far_ends *far, struct pd_err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket");
    p->input = pair[0];
    far->fd[0] = pair[1];

    if (shutdown(p->input, SHUT_RD) < 0 || fd_set_nonblock(p->input) < 0)
        return pd_fail_sys(e, "set up a socket");
    return session_make_pipe(&p->streams[STREAM_EVENTS].source.fd, &far->fd[3], true, e);
}

/* Those that wait, if they are what this command needs. */
static bool take_ready_ends(struct process *p, const struct process_request *r,
                            struct far_ends *far)
{
    struct ready_ends ends;
    bool fits = p->direct && !r->pty && !r->driver && !r->keep_stdin && !r->input_len;
    if (!fits || !ready_ends_take(&p->session->all->ready_ends, &ends))
        return false;

    p->streams[STREAM_OUT].source.fd = ends.out[0];
    p->streams[STREAM_ERR].source.fd = ends.err[0];
    far->fd[0] = ends.null;
    far->fd[1] = ends.out[1];
    far->fd[2] = ends.err[1];
    return true;
}

int session_make_streams(struct process *p, const struct process_request *r, struct far_ends *far,
                         struct pd_err *e)
{
    if (p->updates_state && session_make_pipe(&p->state_pipe, &far->fd[3], true, e) < 0)
        return -1;
    /* It is read when the shell has ended: what does not fit must not keep the shell waiting. */
    if (p->updates_state && fcntl(far->fd[3], F_SETFL, O_NONBLOCK) < 0)
        return pd_fail_sys(e, "set up a pipe");

    if (r->pty)
        return make_terminal(p, r, far, e);
    if (take_ready_ends(p, r, far))
        return 0;

    if (session_make_pipe(&p->streams[STREAM_OUT].source.fd, &far->fd[1], true, e) < 0 ||
        session_make_pipe(&p->streams[STREAM_ERR].source.fd, &far->fd[2], true, e) < 0)
        return -1;

    if (r->driver)
        return make_driver_ends(p, far, e);
    if (r->keep_stdin)
        return session_make_pipe(&p->input, &far->fd[0], false, e);
    if (r->input_len)
        return make_input(r->input, r->input_len, &far->fd[0], e);

    far->fd[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return far->fd[0] < 0 ? pd_fail_sys(e, "open /dev/null") : 0;
}

/* For people, in lists and logs. */
static char *describe(const struct process_request *r)
{
    auto_buf text = BUF_INIT(4096);
    if (r->command) {
        buf_put(&text, r->command, strnlen(r->command, 4000));
    } else {
        uint32_t pos = 0;
        for (const char *a; (a = msg_list_next(&r->argv, &pos));)
            if (buf_printf(&text, "%s%s", text.len ? " " : "", a) < 0)
                break;
    }

    const char *c = buf_cstr(&text);
    return strdup(c ? c : "");
}

static int check_user(const char *user, uint32_t *ret, struct pd_err *e)
{
    if (!user || !strcmp(user, "user"))
        *ret = SANDBOX_UID_USER;
    else if (!strcmp(user, "root"))
        *ret = SANDBOX_UID_ROOT;
    else
        return pd_fail(e, PD_INVALID, "user '%.40s': there are 'user' and 'root'", user);
    return 0;
}

/* A command with this key that exists already. */
static struct process *find_key(struct session *s, const char *key)
{
    for (struct process *p = s->processes; p; p = p->next)
        if (p->key && !strcmp(p->key, key))
            return process_ref(p);
    return NULL;
}

/* Answers of enter and start_judged besides 0 and -1. */
#define IS_KNOWN    1 /* a command with its key exists */
#define JUDGE_AGAIN 2 /* what its judgement relied on has changed: nothing was done */

/* A worker counts until its end is heard of, which is after its answer: on a busy machine one
 * client alone has many such, one after the other. They are waited for, because nobody could end
 * them. With the session's lock held. */
static void await_room(struct session *s)
{
    deadline d = deadline_in(ENDING_PATIENCE);
    while (s->running >= PROCESSES_RUNNING && s->ending && lock_wait(&s->changed, &s->lock, d))
        continue;
}

/* Enters it into the session: from now on it can be found, and the session stays where it is. */
static int enter(struct session *s, struct process *p, struct process **ret_known, struct pd_err *e)
{
    lock_take(&s->lock);
    await_room(s);
    int r = 0;
    if (s->moving && p->looks)
        r = pd_fail(e, PD_CONFLICT, "sandbox %s is being moved", s->info.id);
    else if (s->moving && !p->moves)
        r = session_await_move(s, e);
    if (r == 0)
        r = session_usable(s, e);
    if (r == 0 && p->key && (*ret_known = find_key(s, p->key)))
        r = IS_KNOWN;
    if (r == 0 && !judgement_holds(s, &p->judgement))
        r = JUDGE_AGAIN;
    if (r == 0 && s->running >= PROCESSES_RUNNING)
        r = pd_fail(e, PD_CAPACITY, "%u commands are running in sandbox %s: end one first",
                    s->running, s->info.id);
    bool updates = p->shell && !p->background && !s->shell_busy && !p->pty;
    bool prepared = r == 0 && updates && p->line_text && prepared_take(s, p);
    if (r == 0 && !prepared && !(p->group = group_take(s, p->serial = ++s->next_serial)))
        r = pd_fail(e, PD_CAPACITY,
                    "processes of %u earlier commands are still running in "
                    "sandbox %s: end some first",
                    GROUPS - 1, s->info.id);

    if (r == 0) {
        p->provider = s->provider;
        p->updates_state = updates;
        if (p->updates_state)
            s->shell_busy = true;
        for (unsigned i = 0; i < process_stream_count(p) && !p->worker; i++)
            p->streams[i].spool = process_spool(p, i);
        s->running++;
        s->looking += p->looks;
        s->starting++;
        if (!p->looks)
            session_used(s);
        session_add_process(s, p);
    }
    lock_release(&s->lock);
    return r;
}

/* It is complete: from now on others may take its streams away. */
static void entered(struct session *s)
{
    lock_take(&s->lock);
    if (--s->starting == 0)
        pthread_cond_broadcast(&s->changed);
    lock_release(&s->lock);
}

static void leave(struct session *s, struct process *p, const struct pd_err *why)
{
    process_close_streams(p);
    process_drop_stash(p);
    bool failed = process_fail(p, why); /* otherwise its end counts */

    lock_take(&s->lock);
    if (failed)
        s->running--;
    if (failed && p->looks)
        s->looking--;
    if (failed && p->updates_state)
        s->shell_busy = false;
    if (p->line == LINE_OWN)
        group_release(s, p->group, p->serial);
    else /* its shell is there, and about to end */
        group_linger(s, p->group, p->serial);
    session_remove_process(s, p);
    lock_release(&s->lock);
    entered(s);
}

/* Where the driver gets the far ends with its request: the worker has nothing but the join socket,
 * whose other end goes to the driver, too. */
static int send_pair(struct process *p, const struct process_request *stand_in, uint32_t uid,
                     int *ret_join, struct pd_err *e)
{
    struct far_ends worker __attribute__((cleanup(far_ends_done))) = FAR_ENDS_NONE;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return pd_fail_sys(e, "make a socket");

    worker.fd[0] = pair[0];
    *ret_join = pair[1];
    worker.fd[1] = open("/dev/null", O_WRONLY | O_CLOEXEC);
    worker.fd[2] = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (worker.fd[1] < 0 || worker.fd[2] < 0)
        return pd_fail(e, PD_CAPACITY, "no descriptor is left");
    return session_send(p, stand_in, uid, &worker, e);
}

/* A copy of another driver: that one gets the far ends with its request, or fetches them from the
 * worker that stands for the copy in the box.
 *
 * The row is written last, while the driver forks, for which the kernel needs milliseconds if the
 * process is large. Nobody knows of the copy before. If this daemon dies before the row is there,
 * the worker is one that nobody remembers, and ends with the copy. */
static int start_fork(struct process *p, const struct process_request *r, uint32_t uid,
                      struct pd_err *e)
{
    struct far_ends far __attribute__((cleanup(far_ends_done))) = FAR_ENDS_NONE;
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    struct pd_err ignored;
    auto_fd join = -1;

    if (session_make_streams(p, r, &far, e) < 0 || process_begin_streams(p, e) < 0)
        return -1;

    struct process_request stand_in = {.env = {.text = ""}, .cwd = "/"};
    char copied[33];
    wire_id_text(r->fork_of->id, copied);
    int bad = msg_list_add(&argv, "join") < 0 ||
              msg_list_add(&argv, r->fork_name ? r->fork_name : "-") < 0 ||
              msg_list_add(&argv, copied) < 0;
    stand_in.argv = msg_list_of(&argv);
    process_begin(p);
    int sent = bad            ? pd_fail(e, PD_CAPACITY, "no memory for a fork")
               : r->fork_name ? session_send(p, &stand_in, uid, &far, e)
                              : send_pair(p, &stand_in, uid, &join, e);
    msg_list_writer_done(&argv);

    const int fds[] = {far.fd[0], far.fd[1], far.fd[2], far.fd[3], join};
    if (sent < 0 || process_send(r->fork_of, r->fork_line, r->fork_line_len, fds,
                                 r->fork_name ? 0 : 5, deadline_in(FORK_SEND_PATIENCE), e) < 0)
        return -1;
    if (process_store(p, e) == 0)
        return 0;
    (void)process_kill_tree(p, true, &ignored);
    return -1;
}

/* The command is on its way when this returns 0. */
static int start(struct process *p, const struct process_request *r, uint32_t uid, bool must_store,
                 struct pd_err *e)
{
    struct far_ends far __attribute__((cleanup(far_ends_done))) = FAR_ENDS_NONE;
    if (p->line == LINE_GIVEN) {
        if (process_begin_streams(p, e) < 0)
            return -1;
        prepared_give(p);
        return 0;
    }

    if (r->fork_of)
        return start_fork(p, r, uid, e);

    if (session_make_streams(p, r, &far, e) < 0 || (must_store && process_store(p, e) < 0) ||
        process_begin_streams(p, e) < 0)
        return -1;
    process_begin(p); /* its end may come before this returns */
    return session_send(p, r, uid, &far, e);
}

/* The words of a worker, whose paths are absolute. */
static int place_words(const struct box_place *place, const struct msg_list *words,
                       struct msg_list_writer *out)
{
    char path[SPEC_PATH_MAX + BOX_PATH_SIZE];
    uint32_t pos = 0;
    int bad = 0;

    for (const char *w; (w = msg_list_next(words, &pos));)
        bad |= msg_list_add(out, place_path(place, w, path, sizeof path) == 0 ? path : w);
    return bad;
}

/* Can the box run it at all? `place` NULL: it is a jail's, which runs everything. */
static int check_place(const struct session *s, const struct box_place *place,
                       const struct process_request *r, uint32_t uid, struct pd_err *e)
{
    if (place && !place->has_root && uid == SANDBOX_UID_ROOT)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s has no root in its sandboxes: run it as user",
                       s->provider->name);

    if (place && r->command && !place->shell[0])
        return pd_fail(e, PD_UNSUPPORTED,
                       "the image of this sandbox has no shell: give the program and its words as "
                       "argv");
    return 0;
}

/* The words of a shell that runs the request's line. `script` holds one of them. */
static int shell_words(const struct process *p, const struct process_request *r,
                       const struct box_place *place, struct buf *script,
                       struct msg_list_writer *out)
{
    bool is_bash = !place || place->has_bash;
    bool tells = p->updates_state && shell_tells(r->command, is_bash);
    int bad = tells ? shell_script(r->command, is_bash, script) : 0;

    bad |= msg_list_add(out, place ? place->shell : "/bin/bash");
    bad |= msg_list_add(out, "-c");
    bad |= msg_list_add(out, tells ? (char *)script->data : r->command);
    return bad;
}

static unsigned exec_flags(const struct process *p)
{
    /* A caller that waits for the end needs no word of the start; the recorder asks for the pid of
     * a command that takes longer. A line that runs again is told from the shell before it by its
     * pid. */
    bool is_quiet = !p->background && !p->line_pid;
    return (p->pty ? EXEC_PTY : 0) | (p->worker || p->joins ? EXEC_WORKER : 0) |
           (p->reach ? EXEC_REACH : 0) | (is_quiet ? EXEC_QUIET : 0);
}

int session_send(struct process *p, const struct process_request *r, uint32_t uid,
                 const struct far_ends *far, struct pd_err *e)
{
    struct session *s = p->session;
    struct box_place where;
    const struct box_place *place = session_place(s, &where) ? &where : NULL;
    if (check_place(s, place, r, uid, e) < 0)
        return -1;

    /* Another line that has just ended may have left another directory, or other variables. */
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT, env = MSG_LIST_WRITER_INIT;
    char cwd[SPEC_PATH_MAX];
    lock_take(&s->lock);
    bool holds = judgement_holds(s, &p->judgement);
    int bad = session_environment(s, r, place, &env);
    bad |= place_path(place, r->cwd ? r->cwd : s->cwd, cwd, sizeof cwd);
    lock_release(&s->lock);
    if (!holds) {
        msg_list_writer_done(&env);
        return pd_fail(e, PD_CONFLICT, JUDGED_TOO_OFTEN, s->info.id);
    }

    auto_buf script = BUF_INIT(WIRE_PAYLOAD_MAX);
    if (r->command)
        bad |= shell_words(p, r, place, &script, &argv);
    if (place && p->worker)
        bad |= place_words(place, &r->argv, &argv);
    bool made_argv = r->command || (place && p->worker);

    struct box_command c = {.id = p->id,
                            .group = p->group,
                            .flags = exec_flags(p),
                            .at_once = r->at_once,
                            .fds = {far->fd[0], far->fd[1], far->fd[2], far->fd[3]},
                            .exec = {.uid = uid,
                                     .gid = uid,
                                     .file_size = r->file_size,
                                     .cwd = cwd,
                                     .argv = made_argv ? msg_list_of(&argv) : r->argv,
                                     .environ = msg_list_of(&env)}};

    int result = -1;
    if (bad || c.exec.argv.bytes + c.exec.environ.bytes + sizeof cwd > WIRE_PAYLOAD_MAX) {
        pd_fail(e, PD_TOO_LARGE,
                "the command and its environment are longer than %u bytes: put "
                "long text into a file",
                WIRE_PAYLOAD_MAX - (unsigned)sizeof cwd);
    } else {
        rw_read(&s->box_use);
        result = s->box ? box_exec(s->box, &c, e) : session_no_box(s, e);
        rw_release(&s->box_use);
    }

    msg_list_writer_done(&argv);
    msg_list_writer_done(&env);
    return result;
}

static int check_policy(struct session *s, const struct process_request *r, struct pd_err *e)
{
    if (s->policy.mode == POLICY_OPEN)
        return 0;
    if (session_check_variables(s, &r->env, e) < 0)
        return -1;
    if (r->command)
        return policy_check_command(&s->policy, r->command, e);

    const char **argv = calloc(r->argv.count + 1, sizeof *argv);
    if (!argv)
        return pd_fail(e, PD_CAPACITY, "no memory");

    uint32_t pos = 0;
    for (uint32_t i = 0; i < r->argv.count; i++)
        argv[i] = msg_list_next(&r->argv, &pos);

    int result = policy_check_argv(&s->policy, argv, e);
    free(argv);
    return result;
}

/* A process that is as the request asks; in no list yet. NULL without memory. */
static struct process *process_of_request(struct session *s, const struct process_request *r,
                                          uint32_t uid, const struct judgement *judgement)
{
    struct process *p = process_new(s);
    if (!p)
        return NULL;

    p->id = wire_id_new();
    p->judgement = *judgement;
    p->shell = r->command != NULL;
    p->unseen = r->unseen;
    p->looks = r->looks;
    p->pty = r->pty;
    p->background = r->background;
    p->back_pressure = r->back_pressure;
    p->driver = r->driver;
    p->joins = r->fork_of != NULL;
    p->spool_max = r->spool_max ? r->spool_max : SPOOL_DEFAULT;
    p->timeout_ns = r->timeout_ns;
    p->key_hash = r->key_hash;
    p->started_ms = time_now_ms();
    p->started_ns = clock_now();

    p->command = describe(r);
    p->note = r->note ? strdup(r->note) : NULL;
    p->key = r->key ? strdup(r->key) : NULL;
    p->line_text = prepared_fits(r, uid) ? strdup(r->command) : NULL;
    if (!p->command || (r->note && !p->note) || (r->key && !p->key)) {
        process_unref(p);
        return NULL;
    }

    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(&r->env, &pos));)
        (void)msg_list_add(&p->env, v);
    return p;
}

/* The command that the key of the request was used for before, whose reference is the caller's. */
static int answer_known(struct process *known, const struct process_request *r,
                        struct process **ret, bool *ret_known, struct pd_err *e)
{
    if (known->key_hash != r->key_hash) {
        process_unref(known);
        return pd_fail(e, PD_CONFLICT, "Idempotency-Key '%.80s' was used for another command",
                       r->key);
    }

    *ret = known;
    *ret_known = true;
    return 0;
}

/* It has entered, and could not be started: nothing of it stays. JUDGE_AGAIN if that is because the
 * judgement does not hold any more. */
static int undo_start(struct session *s, struct process *p, const struct judgement *judgement,
                      const struct pd_err *why)
{
    if (p->stored) {
        struct pd_err ignored;
        (void)s->all->c.store->delete_process(s->all->c.store, p->id.bytes, &ignored);
    }

    lock_take(&s->lock);
    bool again = !judgement_holds(s, judgement);
    lock_release(&s->lock);

    if (p->shadowed)
        shadow_cancel(p);
    leave(s, p, why);
    process_unref(p);
    return again ? JUDGE_AGAIN : -1;
}

/* As session_start, if the judgement holds when it starts. */
static int start_judged(struct session *s, const struct process_request *r, uint32_t uid,
                        const struct judgement *judgement, struct process **ret, bool *ret_known,
                        struct pd_err *e)
{
    struct process *p = process_of_request(s, r, uid, judgement), *known = NULL;
    if (!p)
        return pd_fail(e, PD_CAPACITY, "no memory for a process");

    bool must_store = (p->background && !r->may_wait) || r->key;
    bool direct = r->listens && !must_store && !p->pty;
    if (direct)
        process_make_direct(p);

    kept_begin(p);
    int at = enter(s, p, &known, e);
    if (at != 0) {
        process_unref(p);
        return at == IS_KNOWN ? answer_known(known, r, ret, ret_known, e) : at;
    }

    if (atomic_load(&s->shadow) && p->driver)
        shadow_give_up(s); /* its cells are not seen from here */
    else if (atomic_load(&s->shadow) && !p->unseen)
        shadow_command(p, r);
    if (start(p, r, uid, must_store, e) < 0)
        return undo_start(s, p, judgement, e);

    if (!must_store && !direct)
        recorder_add(p, TASK_STORE, STORE_AFTER);
    /* Nobody may attend it: its client can go away and leave it running. */
    if ((must_store || p->background) && p->timeout_ns)
        pump_set_timer(s->all->c.pump, &p->timeout, deadline_in(p->timeout_ns));

    entered(s);
    *ret = p;
    *ret_known = false;
    return 0;
}

int session_start(struct session *s, const struct process_request *r, struct process **ret,
                  bool *ret_known, struct pd_err *e)
{
    uint32_t uid = SANDBOX_UID_USER;
    if (check_user(r->user, &uid, e) < 0 || check_policy(s, r, e) < 0)
        return -1;
    if (r->cwd && r->cwd[0] != '/')
        return pd_fail(e, PD_INVALID, "cwd '%.100s': must be an absolute path", r->cwd);
    if (r->note && strlen(r->note) > NOTE_MAX)
        return pd_fail(e, PD_TOO_LARGE, "a note is longer than %u bytes", NOTE_MAX);

    bool judges = r->mode || s->info.mode == MODE_AUTO;
    for (unsigned i = 0; i < JUDGE_TRIES; i++) {
        struct judgement judgement = {.is_judged = false};
        if (judges && session_judge(s, r, &judgement, r->placement, e) < 0)
            return -1;

        const struct provider *at = s->provider;
        if (r->background && at && provider_must(at, PROVIDER_BACKGROUND, e) < 0)
            return -1;

        int done = start_judged(s, r, uid, &judgement, ret, ret_known, e);
        if (done != JUDGE_AGAIN)
            return done;
    }
    return pd_fail(e, PD_CONFLICT, JUDGED_TOO_OFTEN, s->info.id);
}

/* ---- workers ---- */

/* Does this worker leave the files as they are? */
static bool only_reads(const struct msg_list *argv)
{
    static const char *const readers[] = {"stat",  "read", "list", "getxattr", "search",
                                          "watch", "tar",  "dial", "ports",    "digest"};
    uint32_t pos = 0;
    const char *word = msg_list_next(argv, &pos);

    for (size_t i = 0; word && i < sizeof readers / sizeof *readers; i++)
        if (!strcmp(word, readers[i]))
            return true;
    return false;
}

int session_worker(struct session *s, const struct msg_list *argv, const char *user, unsigned flags,
                   struct worker_call *ret, struct pd_err *e)
{
    uint32_t uid = SANDBOX_UID_USER;
    if (check_user(user, &uid, e) < 0)
        return -1;

    if (atomic_load(&s->shadow) && !only_reads(argv))
        shadow_give_up(s);

    struct process *p = process_new(s), *known = NULL;
    if (!p)
        return pd_fail(e, PD_CAPACITY, "no memory for a worker");
    p->id = wire_id_new();
    p->worker = true;
    p->unseen = true;
    p->reach = !!(flags & WORKER_REACH);
    p->moves = !!(flags & WORKER_MOVES);
    p->looks = !!(flags & WORKER_LOOKS);
    p->started_ns = clock_now();

    if (enter(s, p, &known, e) < 0) {
        process_unref(p);
        return -1;
    }

    struct worker_call c = {.session = s, .process = p, .in = -1, .out = -1, .go = -1};
    struct far_ends far __attribute__((cleanup(far_ends_done))) = FAR_ENDS_NONE;
    struct process_request r = {.argv = *argv, .env = {.text = ""}, .cwd = "/", .user = user};
    int bad = 0;

    if (flags & WORKER_INPUT)
        bad |= session_make_pipe(&c.in, &far.fd[0], false, e);
    else
        far.fd[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (!bad)
        bad |= session_make_pipe(&c.out, &far.fd[1], true, e);
    if (!bad && flags & WORKER_COMMIT)
        bad |= session_make_pipe(&c.go, &far.fd[2], false, e);
    else if (!bad)
        far.fd[2] = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (!bad)
        process_begin(p); /* its end may come before this returns */
    if (bad || session_send(p, &r, uid, &far, e) < 0) {
        fd_done(&c.in);
        fd_done(&c.out);
        fd_done(&c.go);
        leave(s, p, e);
        process_unref(p);
        return -1;
    }

    entered(s);
    session_ref(s);
    if (!p->looks)
        session_attend_begin(s);
    *ret = c;
    return 0;
}

void session_worker_end(struct worker_call *c, int abort)
{
    struct pd_err e;

    lock_take(&c->session->lock);
    bool running = process_state_is_live(process_state(c->process));
    c->process->is_ending = running;
    c->session->ending += running;
    lock_release(&c->session->lock);

    /* Killed before its pipes are closed: an end of input must not look like the end of a file. */
    if (abort && running)
        (void)process_stop(c->process, STOP_ABANDONED, &e);

    fd_done(&c->go);
    fd_done(&c->in);
    fd_done(&c->out);
    if (!c->process->looks)
        session_attend_end(c->session);
    process_unref(c->process);
    session_unref(c->session);
}
