/* How this works: starting bash takes longer than most lines do, so the shell of the *next* line is
 * started when a line has ended. It gets the session's directory and environment, pipes and a group
 * of its own; it sets its trap (session_shell.c), reads its input, a pipe, and waits. The line
 * comes through that pipe, as text that becomes the shell's first parameter; the pipe is closed,
 * the shell opens /dev/null in its place, tells by one byte on the state pipe that it begins, and
 * evaluates the parameter. From then on it is a command as any other: it has the id, the group and
 * the pipes that were made with the shell, and time-outs, signals and its end go their usual way.
 *
 *   prepared_make       2 ms after a line has ended, on the recorder's thread; later if the shell
 *                       that the line could not use has not ended yet
 *   prepared_take       a line that fits takes the shell over, under the session's lock
 *   prepared_give       and writes its text
 *   prepared_look       gives up one that has waited for WAIT_MAX, and makes one when the pause
 * after a failure is over, if a line has ended in it (the controller)
 *
 * Never twice, never not at all. The byte says that a line has begun. A shell that ends without it
 * (killed, its directory is gone, its text did not come through) has not run its line, which is
 * then run in a shell of its own, with the same id (prepared_run_again), when init has forgotten
 * that one; whose end may be told once more, and is known by its pid. A shell that is stopped
 * does not end: after BEGIN_PATIENCE without the byte the text is taken back out of the pipe. What
 * was read back the shell cannot have; and without its end, a quote, the rest is no line. So that
 * shell is killed and the line runs elsewhere. If nothing is left in the pipe the shell may have
 * its line, and begin at any moment. So its group is frozen (box_hold) before the byte is looked
 * for: if it is there the line has begun, and goes on; if not, it cannot begin any more, and the
 * shell is killed before it is let go. Where nothing can be frozen (no cgroups) that shell has
 * HELD_PATIENCE to begin. Then it is killed, and the byte is looked for when it has ended: the line
 * runs elsewhere, or, should it have begun in the last moment, its end by SIGKILL is told.
 *
 * When none is used: the line is not alone (another has the shell's state), has a directory, user,
 * variables, input or key of its own, is long, or turns tracing on (one more `+` would be seen). A
 * shell is thrown away when the session's state is another one than when it was made. None is made
 * when the sandbox is at 90 % of its memory or processes, when descriptors are few, and for an
 * environment that changes how bash starts.
 *
 * What user code can do to a waiting shell, which is its own user's: kill it, stop it, trace it,
 * read its line, write to its state pipe. All of that it can do to the shell of a line that runs,
 * too. It decides about that one line and its state, which are checked as ever.
 *
 * A daemon that dies closes the pipe: the shell reads no line and ends. If it is stopped, the next
 * daemon finds a command without a row, and kills it. */
#include "core/prepared.h"

#include "core/session_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "telemetry/log.h"
#include "wire/ceilings.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_MAX_BYTES 16000u          /* four times as much, all quotes, fits a pipe */
#define WAIT_MAX       (30 * NS_PER_S) /* without a line */
#define BEGIN_PATIENCE (100 * NS_PER_MS)
#define HELD_PATIENCE  (3 * NS_PER_S)
#define FULL_PAUSE     (5 * NS_PER_MS)   /* before a box that had no room is tried again */
#define ENDING_PAUSE   (5 * NS_PER_MS)   /* before it is seen again whether the old one is gone */
#define END_PATIENCE   (500 * NS_PER_MS) /* bash takes less than one of them */
#define LOOK_PAUSE     NS_PER_S
#define FAILED_LEAST   NS_PER_S
#define FAILED_MOST    (64 * NS_PER_S)
#define GROUPS_MOST    (GROUPS / 2)

/* ---- the pipes ---- */

#define NO_ENDS ((struct prepared_ends){-1, -1, -1, -1, -1})

static void ends_close(struct prepared_ends *n)
{
    fd_done(&n->line);
    fd_done(&n->back);
    fd_done(&n->out);
    fd_done(&n->err);
    fd_done(&n->state);
}

void prepared_init(struct prepared *r)
{
    r->ends = NO_ENDS;
}

void prepared_done(struct prepared *r)
{
    ends_close(&r->ends);
}

/* The shell opens its input by its name, /proc/self/fd/0, as another user than this one: so others
 * may read it, and nobody may open it to write. The end that stays here for taking the line back is
 * opened the same way: a description of its own, which does not wait. */
static int make_line_pipe(struct prepared_ends *near, struct far_ends *far, struct pd_err *e)
{
    char name[32];
    if (session_make_pipe(&near->line, &far->fd[0], false, e) < 0)
        return -1;
    if (fchmod(far->fd[0], 0444) < 0)
        return pd_fail_sys(e, "set up a pipe");

    snprintf(name, sizeof name, "/proc/self/fd/%d", far->fd[0]);
    near->back = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return near->back < 0 ? pd_fail_sys(e, "open a pipe") : 0;
}

static int make_ends(struct prepared_ends *near, struct far_ends *far, struct pd_err *e)
{
    if (make_line_pipe(near, far, e) < 0 ||
        session_make_pipe(&near->out, &far->fd[1], true, e) < 0 ||
        session_make_pipe(&near->err, &far->fd[2], true, e) < 0 ||
        session_make_pipe(&near->state, &far->fd[3], true, e) < 0)
        return -1;

    if (fd_set_nonblock(far->fd[3]) < 0)
        return pd_fail_sys(e, "set up a pipe");
    if (!fd_spare(near->line, 2 * (unsigned)ceilings_files_reserve(fd_limit())))
        return pd_fail(e, PD_CAPACITY, "descriptors are few");
    return 0;
}

/* ---- the record; all with the session's lock held ---- */

/* It has ended, or never was. Its group is given free when it is seen to be empty. */
static void clear(struct session *s)
{
    struct prepared *r = &s->prepared;
    ends_close(&r->ends);
    if (r->group)
        group_linger(s, r->group, r->serial);

    r->stage = PREPARED_NONE;
    r->group = 0;
    pthread_cond_broadcast(&s->changed);
}

/* Without its line it ends by itself. */
static void end_wait(struct session *s)
{
    struct prepared *r = &s->prepared;
    if (r->stage != PREPARED_WAITING)
        return;

    ends_close(&r->ends);
    r->stage = PREPARED_ENDING;
    r->until = deadline_in(END_PATIENCE);
}

bool prepared_is(struct session *s, struct wire_id id)
{
    lock_take(&s->lock);
    bool is = s->prepared.stage != PREPARED_NONE && wire_id_equal(s->prepared.id, id);
    lock_release(&s->lock);
    return is;
}

bool prepared_ended(struct session *s, struct wire_id id)
{
    struct prepared *r = &s->prepared;

    lock_take(&s->lock);
    bool is = r->stage != PREPARED_NONE && wire_id_equal(r->id, id);
    if (is) {
        r->died |= r->stage == PREPARED_WAITING;
        clear(s);
    }
    lock_release(&s->lock);
    return is;
}

void prepared_forget(struct session *s)
{
    lock_take(&s->lock);
    clear(s);
    s->prepared.died = s->prepared.owed = false;
    lock_release(&s->lock);
}

unsigned prepared_count(const struct session *s)
{
    return s->prepared.stage != PREPARED_NONE;
}

/* ---- a line ---- */

/* Is there a word `set` in it? */
static bool says_set(const char *line)
{
    for (const char *at = line; (at = strstr(at, "set")); at += 3) {
        bool begins = at == line || (!isalnum((unsigned char)at[-1]) && at[-1] != '_');
        if (begins && at[3] && strchr(" \t\n\\'\"", at[3]))
            return true;
    }
    return false;
}

/* Does it turn tracing on? Then each traced command would be seen to have one more `+`. A cluster
 * of options with an x in it is enough, in a line that says `set`. */
static bool traces(const char *line)
{
    if (strstr(line, "xtrace") || strstr(line, "SHELLOPTS"))
        return true;
    if (!says_set(line))
        return false;

    for (const char *at = line; (at = strchr(at, '-'));) {
        size_t len = strspn(++at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
        if (memchr(at, 'x', len))
            return true;
    }
    return false;
}

bool prepared_fits(const struct process_request *r, uint32_t uid)
{
    return r->command && uid == SANDBOX_UID_USER && !r->background && !r->pty && !r->cwd &&
           !r->env.count && !r->keep_stdin && !r->input_len && !r->file_size && !r->key &&
           strnlen(r->command, LINE_MAX_BYTES) < LINE_MAX_BYTES && !traces(r->command) &&
           !strstr(r->command, "BASH_EXECUTION_STRING");
}

bool prepared_take(struct session *s, struct process *p)
{
    struct prepared *r = &s->prepared;
    if (r->stage != PREPARED_WAITING)
        return false;
    if (r->version != s->shell_version) {
        end_wait(s);
        return false;
    }

    p->id = r->id;
    p->group = r->group;
    p->serial = r->serial;
    p->streams[STREAM_OUT].source.fd = fd_take(&r->ends.out);
    p->streams[STREAM_ERR].source.fd = fd_take(&r->ends.err);
    p->state_pipe = fd_take(&r->ends.state);
    p->line_back = fd_take(&r->ends.back);
    p->line_in = fd_take(&r->ends.line);
    p->line = LINE_GIVEN;

    r->stage = PREPARED_NONE;
    r->group = 0;
    return true;
}

/* A text that does not go through whole is as good as none: the shell ends without a byte. */
void prepared_give(struct process *p)
{
    auto_buf text = BUF_INIT(5 * LINE_MAX_BYTES);
    int bad = shell_line(p->line_text, &text);

    p->given_ns = clock_now();
    process_begin(p); /* its end may come before this returns */

    /* While it is given the other end is open here: no SIGPIPE, and the write does not wait. */
    lock_take(&p->lock);
    if (p->line_gone)
        (void)prepared_on_exit(p, p->line_pid);
    else if (!bad && p->line == LINE_GIVEN)
        (void)!write(p->line_in, text.data, text.len);
    fd_done(&p->line_in);
    lock_release(&p->lock);
}

/* With the process's lock held. */
static bool has_begun(struct process *p)
{
    char byte;
    bool may_have = p->line == LINE_GIVEN || p->line == LINE_HELD;
    if (may_have && read(p->state_pipe, &byte, 1) == 1) {
        p->line = LINE_BEGUN;
        fd_done(&p->line_back);
    }
    return p->line == LINE_OWN || p->line == LINE_BEGUN;
}

bool prepared_on_exit(struct process *p, int pid)
{
    if (p->state == PROCESS_STARTING && p->line == LINE_GIVEN) {
        p->line_gone = true;
        p->line_pid = pid;
    }
    if (p->state != PROCESS_RUNNING)
        return false;
    if (p->line == LINE_OWN && pid && pid == p->line_pid)
        return true; /* a sync of another command has told it once more */
    if (has_begun(p))
        return false;
    if (p->line == LINE_AGAIN)
        return true; /* a box may tell what it likes, and as often */

    fd_done(&p->line_back);
    if (p->stop != STOP_NONE) {
        p->line = LINE_BEGUN; /* somebody wanted it to end, and it has */
        return false;
    }

    p->line = LINE_AGAIN;
    p->line_pid = pid;
    p->pid = 0;
    recorder_add(p, TASK_AGAIN, 0);
    return true;
}

/* Takes the text back, if there is anything left of it. With the process's lock held. */
static void take_back(struct process *p)
{
    char text[4096];
    p->line = LINE_HELD;
    while (read(p->line_back, text, sizeof text) > 0)
        p->line = LINE_BACK;
    fd_done(&p->line_back);
}

static bool is_running(struct session *s)
{
    lock_take(&s->lock);
    bool running = s->life == LIFE_RUNNING;
    lock_release(&s->lock);
    return running;
}

/* The shell has all of its text and has not begun. Held, it cannot begin: with the byte it goes on,
 * without it, it is killed. So is one that cannot be held and has had its time. The line stays
 * HELD, so that its end looks for the byte once more: were it there in spite of all, the line does
 * not run again. */
static bool decide_held(struct process *p, bool late)
{
    struct session *s = p->session;
    struct pd_err e;
    bool begun = false, held = false;

    lock_take(&s->lock);
    bool mine = group_kill_begin(s, p->group, p->serial);
    lock_release(&s->lock);
    if (!mine)
        return false;

    rw_read(&s->box_use);
    held = s->box && box_hold(s->box, p->group, true, &e) == 0;
    if (held || (s->box && late)) {
        lock_take(&p->lock);
        begun = p->state != PROCESS_RUNNING || has_begun(p);
        lock_release(&p->lock);

        if (!begun && box_kill(s->box, p->id, p->group, &e) < 0)
            log_warn("prepared.kill", "session=%s error=%s", s->info.id, e.msg);
    }
    if (held && box_hold(s->box, p->group, false, &e) < 0)
        log_warn("prepared.hold", "session=%s error=%s", s->info.id, e.msg);
    rw_release(&s->box_use);

    lock_take(&s->lock);
    group_kill_end(s, p->group);
    lock_release(&s->lock);
    return begun;
}

bool prepared_is_unsure(struct process *p)
{
    struct pd_err e;
    bool running = is_running(p->session); /* a shell that stands still with its sandbox is well */

    lock_take(&p->lock);
    uint64_t waited = clock_now() - p->given_ns;
    bool begun = p->state != PROCESS_RUNNING || has_begun(p);
    if (!begun && p->line == LINE_GIVEN && running && waited >= BEGIN_PATIENCE)
        take_back(p);
    enum process_line line = begun ? LINE_BEGUN : p->line;
    lock_release(&p->lock);

    bool late = waited >= HELD_PATIENCE;
    if (line == LINE_BEGUN || (line == LINE_HELD && running && decide_held(p, late)))
        return false;
    if (line == LINE_AGAIN)
        return true; /* it is looked at when it runs again */

    if (line == LINE_BACK && process_kill_tree(p, true, &e) < 0)
        log_warn("prepared.kill", "session=%s error=%s", p->session->info.id, e.msg);
    recorder_add(p, TASK_STORE, waited < BEGIN_PATIENCE ? BEGIN_PATIENCE - waited : NS_PER_S);
    return true;
}

/* ---- again ---- */

/* The next one waits longer to be made, where it is always so that they fail. */
static void note_failure(struct session *s)
{
    struct prepared *r = &s->prepared;

    lock_take(&s->lock);
    r->died = true;
    r->pause_ns = r->pause_ns ? 2 * r->pause_ns : FAILED_LEAST;
    if (r->pause_ns > FAILED_MOST)
        r->pause_ns = FAILED_MOST;
    r->not_before = deadline_in(r->pause_ns);
    lock_release(&s->lock);
}

/* New pipes in the place of those of the shell that is gone. */
static int renew_streams(struct process *p, const struct process_request *r, struct far_ends *far,
                         struct pd_err *e)
{
    struct pump *pump = p->session->all->c.pump;
    for (unsigned i = 0; i < STREAM_COUNT; i++)
        pump_remove(pump, &p->streams[i].source);

    lock_take(&p->lock);
    for (unsigned i = 0; i < STREAM_COUNT; i++) {
        pump_drop(pump, &p->streams[i].source); /* it may have been handed over just now */
        fd_done(&p->streams[i].source.fd);
    }
    fd_done(&p->state_pipe);
    int made =
        p->closed ? pd_fail(e, PD_LOST, "the sandbox is gone") : session_make_streams(p, r, far, e);
    if (made == 0)
        made = process_begin_streams(p, e);
    lock_release(&p->lock);
    return made;
}

void prepared_run_again(struct process *p)
{
    struct session *s = p->session;
    struct far_ends far __attribute__((cleanup(far_ends_done))) = FAR_ENDS_NONE;
    struct process_request r = {.command = p->line_text, .env = {.text = ""}, .at_once = true};
    struct pd_err e;

    lock_take(&p->lock);
    bool mine = p->line == LINE_AGAIN && p->state == PROCESS_RUNNING;
    bool stopped = mine && p->stop != STOP_NONE;
    if (stopped)
        p->line = LINE_BEGUN;
    lock_release(&p->lock);
    if (stopped) /* while nothing of it was there that could be killed */
        process_on_exit(p, &(struct msg_exited){.status = SIGKILL});
    if (!mine || stopped)
        return;

    if (!is_running(s)) { /* it is when it goes on; and if it ends, that is told otherwise */
        recorder_add(p, TASK_AGAIN, BEGIN_PATIENCE);
        return;
    }

    /* Init runs an id once, until it has forgotten it. */
    rw_read(&s->box_use);
    bool full = s->box && box_forget(s->box, p->id) < 0;
    rw_release(&s->box_use);

    int sent = -1;
    if (!full && (sent = renew_streams(p, &r, &far, &e)) == 0) {
        lock_take(&p->lock);
        p->line = LINE_OWN;
        lock_release(&p->lock);
        sent = session_send(p, &r, SANDBOX_UID_USER, &far, &e);
        full = sent < 0 && e.sys == EAGAIN;
    }

    lock_take(&p->lock);
    p->line = full ? LINE_AGAIN : LINE_OWN;
    stopped = p->stop != STOP_NONE;
    lock_release(&p->lock);

    if (full) { /* other commands are on their way; this thread may not wait for the box */
        recorder_add(p, TASK_AGAIN, FULL_PAUSE);
        return;
    }
    note_failure(s);
    log_info("prepared.again", "session=%s", s->info.id);

    if (sent < 0) {
        process_on_refused(p, &e);
        return;
    }
    if (stopped) /* whoever did has not met the new one */
        (void)process_kill_tree(p, true, &e);
    recorder_add(p, TASK_STORE, STORE_AFTER);
}

/* ---- making one ---- */

/* A variable that changes how bash starts, or what it does before the line. */
static bool is_odd(const char *pair)
{
    static const char *const names[] = {
        "ENV=", "SHELLOPTS=", "POSIXLY_CORRECT=", "PS4=", "SECONDS=", "TMOUT="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strncmp(pair, names[i], strlen(names[i])))
            return true;
    return !strncmp(pair, "BASH", 4) || !strncmp(pair, "LD_", 3);
}

/* With the session's lock held. */
static bool is_wanted(struct session *s)
{
    const struct prepared *r = &s->prepared;
    struct msg_list env = msg_list_of(&s->env);
    uint32_t pos = 0;
    for (const char *v; (v = msg_list_next(&env, &pos));)
        if (is_odd(v))
            return false;

    return r->stage == PREPARED_NONE && s->life == LIFE_RUNNING && !s->changing && !s->lost &&
           !s->shell_busy;
}

/* Is one to be made now? In the pause after a failure none is, but one is owed then. With the
 * session's lock held. */
static bool is_due(struct session *s)
{
    if (!is_wanted(s))
        return false;

    s->prepared.owed = !deadline_passed(s->prepared.not_before);
    return !s->prepared.owed;
}

/* Nine tenths of a limit. */
static bool is_near(uint64_t used, uint64_t limit)
{
    return limit && used >= limit - limit / 10;
}

/* Has the sandbox memory and processes to spare? Asked for once a second at most. */
static bool has_room(struct session *s)
{
    struct prepared *r = &s->prepared;
    struct box_usage u;
    struct pd_err e;

    lock_take(&s->lock);
    bool fresh = r->looked_ns && clock_now() - r->looked_ns < LOOK_PAUSE && !r->died;
    bool roomy = r->roomy;
    lock_release(&s->lock);
    if (fresh)
        return roomy;

    rw_read(&s->box_use);
    bool known = s->box && box_get_usage(s->box, &u, &e) == 0;
    rw_release(&s->box_use);

    lock_take(&s->lock);
    const struct limits *l = &s->info.spec.limits;
    r->roomy = known && !is_near(u.memory, l->memory) && !is_near(u.pids, l->pids);
    r->looked_ns = clock_now();
    if (known && r->died && !s->running) {
        /* Limits that the shell met with are not the fault of the next command. */
        s->oom_seen = u.oom_kills;
        s->pids_seen = u.pids_refused;
    }
    if (!s->running)
        r->died = false;
    roomy = r->roomy;
    lock_release(&s->lock);
    return roomy;
}

/* The directory and variables of a new shell, as the session is now. */
struct start {
    struct wire_id id;
    unsigned group;
    char cwd[SPEC_PATH_MAX];
    char shell[BOX_PATH_SIZE];
    struct msg_list_writer env;
};

/* Enters it: from now on a line may take it, though it is not sent yet. The ends are the session's
 * then. */
static bool enter(struct session *s, struct prepared_ends *near, struct start *st)
{
    struct process_request none = {.env = {.text = ""}};
    struct prepared *r = &s->prepared;
    struct box_place where;
    const struct box_place *place = session_place(s, &where) ? &where : NULL;
    bool entered = false;

    st->shell[0] = 0;
    if (!place || place->has_bash)
        snprintf(st->shell, sizeof st->shell, "%.500s", place ? place->shell : "/bin/bash");

    lock_take(&s->lock);
    uint64_t serial = ++s->next_serial;
    if (is_due(s) && st->shell[0] && session_environment(s, &none, place, &st->env) == 0 &&
        place_path(place, s->cwd, st->cwd, sizeof st->cwd) == 0 &&
        (st->group = group_take(s, serial))) {
        entered = st->group < GROUPS_MOST;
        if (!entered)
            group_release(s, st->group, serial);
    }

    if (entered) {
        st->id = wire_id_new();
        r->stage = PREPARED_WAITING;
        r->id = st->id;
        r->group = st->group;
        r->serial = serial;
        r->version = s->shell_version;
        r->ends = *near;
        r->until = deadline_in(WAIT_MAX);
        *near = NO_ENDS;
    }
    lock_release(&s->lock);
    return entered;
}

static int start_shell(struct session *s, const struct start *st, const struct far_ends *far,
                       struct pd_err *e)
{
    auto_buf script = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_list_writer argv = MSG_LIST_WRITER_INIT;
    int bad = shell_prepared_script(st->cwd, &script);
    bad |= msg_list_add(&argv, st->shell) | msg_list_add(&argv, "-c");
    bad |= bad ? 0 : msg_list_add(&argv, (char *)script.data);

    struct box_command c = {.id = st->id,
                            .group = st->group,
                            .flags = EXEC_QUIET,
                            .at_once = true,
                            .fds = {far->fd[0], far->fd[1], far->fd[2], far->fd[3]}};
    c.exec = (struct msg_exec){.uid = SANDBOX_UID_USER,
                               .gid = SANDBOX_UID_USER,
                               .cwd = st->cwd,
                               .argv = msg_list_of(&argv),
                               .environ = msg_list_of(&st->env)};

    int r = -1;
    if (bad || c.exec.argv.bytes + c.exec.environ.bytes + sizeof st->cwd > WIRE_PAYLOAD_MAX) {
        pd_fail(e, PD_TOO_LARGE, "no room for a prepared shell");
    } else {
        rw_read(&s->box_use);
        r = s->box ? box_exec(s->box, &c, e) : pd_fail(e, PD_LOST, "the sandbox is gone");
        rw_release(&s->box_use);
    }
    msg_list_writer_done(&argv);
    return r;
}

/* A line has begun in its shell: they do not fail here. */
static void note_success(struct session *s)
{
    lock_take(&s->lock);
    s->prepared.pause_ns = 0;
    lock_release(&s->lock);
}

/* Makes one, if that is possible. */
static void make_shell(struct session *s)
{
    struct prepared_ends near = NO_ENDS;
    struct far_ends far __attribute__((cleanup(far_ends_done))) = FAR_ENDS_NONE;
    struct start st = {.env = MSG_LIST_WRITER_INIT};
    struct pd_err e;

    if (has_room(s) && make_ends(&near, &far, &e) == 0 && enter(s, &near, &st) &&
        start_shell(s, &st, &far, &e) < 0 && !prepared_ended(s, st.id)) {
        /* A line has taken it meanwhile. */
        struct process *taker = session_process_by_id(s, st.id);
        if (taker)
            process_on_refused(taker, &e);
        process_unref(taker);
    }

    ends_close(&near);
    msg_list_writer_done(&st.env);
}

void prepared_make(struct process *p)
{
    struct session *s = p->session;
    if (!atomic_load(&s->all->prepare_shells) || !p->updates_state)
        return;

    lock_take(&p->lock);
    bool refused = p->refused, begun = p->line == LINE_BEGUN;
    lock_release(&p->lock);
    if (refused)
        return;
    if (begun)
        note_success(s);

    lock_take(&s->lock);
    bool due = is_due(s);
    bool later = s->prepared.stage == PREPARED_ENDING && s->life == LIFE_RUNNING && !s->shell_busy;
    lock_release(&s->lock);

    if (later) /* the line could not use the one that waited, and that takes its time to end */
        recorder_add(p, TASK_PREPARE, ENDING_PAUSE);
    if (due)
        make_shell(s);
}

/* ---- giving one up ---- */

/* Kills the one that does not end by itself: somebody has stopped it. */
static void kill_shell(struct session *s)
{
    struct pd_err e;

    lock_take(&s->lock);
    struct wire_id id = s->prepared.id;
    unsigned group = s->prepared.group;
    s->prepared.until = deadline_in(NS_PER_S);
    bool held =
        s->prepared.stage == PREPARED_ENDING && group_kill_begin(s, group, s->prepared.serial);
    lock_release(&s->lock);
    if (!held)
        return;

    rw_read(&s->box_use);
    if (s->box && box_kill(s->box, id, group, &e) < 0)
        log_warn("prepared.kill", "session=%s error=%s", s->info.id, e.msg);
    rw_release(&s->box_use);

    lock_take(&s->lock);
    group_kill_end(s, group);
    lock_release(&s->lock);
}

/* Waits until it is gone. */
static bool await_end(struct session *s, uint64_t patience)
{
    deadline d = deadline_in(patience);

    lock_take(&s->lock);
    end_wait(s);
    while (s->prepared.stage != PREPARED_NONE && lock_wait(&s->changed, &s->lock, d))
        ;
    bool gone = s->prepared.stage == PREPARED_NONE;
    lock_release(&s->lock);
    return gone;
}

void prepared_give_up(struct session *s)
{
    if (await_end(s, END_PATIENCE))
        return;

    kill_shell(s);
    if (!await_end(s, END_PATIENCE))
        log_warn("prepared.end", "session=%s error=it does not end", s->info.id);
}

void prepared_look(struct session *s, bool every_second)
{
    struct prepared *r = &s->prepared;
    bool prepares = atomic_load(&s->all->prepare_shells);

    lock_take(&s->lock);
    bool waiting = r->stage == PREPARED_WAITING;
    if (waiting && (deadline_passed(r->until) || !prepares))
        end_wait(s);
    bool late = r->stage == PREPARED_ENDING && deadline_passed(r->until);
    bool due = r->owed && prepares && is_due(s);
    lock_release(&s->lock);

    if (late)
        kill_shell(s);
    if (due)
        make_shell(s);
    if (!waiting || !every_second || has_room(s))
        return;

    lock_take(&s->lock);
    end_wait(s);
    lock_release(&s->lock);
}
