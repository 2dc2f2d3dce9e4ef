/* A process is made when a command is started or found in the database, and counted: the session's
 * list has one reference, everybody who works with it another. What others may know of it is copied
 * out by process_get.
 *
 * process_life.c has its states, process_streams.c its output, process_watch.c the waiting for it,
 * process_control.c what is done to it. */
#include "core/process_state.h"

#include "core/session_state.h"

#include "access/ids.h"
#include "base/banned.h"
#include "base/err.h"

#include <sys/wait.h>

const char *process_stop_name(enum process_stop s)
{
    static const char *const names[STOP_COUNT] = {NULL,        "timeout", "oom",     "pids",
                                                  "disk",      "output",  "syscall", "killed",
                                                  "abandoned", "sandbox"};
    return (unsigned)s < STOP_COUNT ? names[s] : NULL;
}

static void on_timeout(struct pump_timer *t)
{
    struct process *p = (struct process *)((char *)t - offsetof(struct process, timeout));
    recorder_add(p, TASK_TIMEOUT, 0);
}

struct process *process_new(struct session *s)
{
    struct process *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;

    atomic_init(&p->refs, 1);
    atomic_init(&p->unwanted, false);
    p->session = session_ref(s);
    p->provider = s->provider;
    p->state = PROCESS_STARTING;
    p->synced = true;
    p->via[0] = p->via[1] = p->input = p->state_pipe = p->line_in = p->line_back = -1;
    p->env = MSG_LIST_WRITER_INIT;
    p->timeout.fire = on_timeout;

    lock_init(&p->lock, LOCK_PROCESS);
    process_init_streams(p);
    return p;
}

struct process *process_ref(struct process *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void process_unref(struct process *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;

    process_close_streams(p);
    for (unsigned i = 0; i < STREAM_ALL; i++)
        spool_done(&p->streams[i].spool);
    msg_list_writer_done(&p->env);
    free(p->command);
    free(p->line_text);
    free(p->note);
    free(p->key);
    lock_done(&p->lock);
    session_unref(p->session);
    free(p);
}

void process_stash_key(const struct process *p, const char *what, char out[MSG_KEY_MAX + 1])
{
    char hex[33];
    wire_id_text(p->id, hex);
    snprintf(out, MSG_KEY_MAX + 1, "%s/%s/%s", p->session->info.id, hex, what);
}

void process_get(struct process *p, struct process_info *ret, struct pd_err *why)
{
    *ret = (struct process_info){.shell = p->shell, .pty = p->pty, .background = p->background};
    wire_id_text(p->id, ret->id);
    snprintf(ret->command, sizeof ret->command, "%s", p->command ? p->command : "");

    lock_take(&p->lock);
    bool live = process_is_live(p);
    ret->pid = p->pid;
    ret->stored = p->stored;
    ret->running = live;
    ret->refused = p->refused;
    ret->forgotten = p->forgotten;
    if (why)
        *why = p->why;

    ret->exit_code = -1;
    if (!live && !p->refused) {
        int status = p->end.status;
        if (WIFEXITED(status))
            ret->exit_code = WEXITSTATUS(status);
        else
            ret->signal = WTERMSIG(status);
    }

    ret->stopped_by = p->stop;
    ret->timed_out = p->stop == STOP_TIMEOUT;
    ret->state_updated = p->state_updated;
    ret->stdin_open = live && p->input >= 0;
    ret->started_ms = p->started_ms;
    ret->ended_ms = p->ended_ms;
    ret->duration_us = live ? (clock_now() - p->started_ns) / 1000 : p->duration_us;
    ret->cpu_usec = p->end.cpu_usec;
    ret->max_rss = p->end.max_rss;

    for (unsigned i = 0; i < STREAM_ALL; i++) {
        ret->size[i] = p->streams[i].spool.size;
        ret->first[i] = p->streams[i].spool.first;
    }
    lock_release(&p->lock);
}

char *process_note(struct process *p)
{
    lock_take(&p->lock);
    char *note = strdup(p->note ? p->note : "");
    lock_release(&p->lock);
    return note;
}

int process_set_note(struct process *p, const char *note, struct pd_err *e)
{
    char *copy = strdup(note);
    if (!copy)
        return pd_fail(e, PD_CAPACITY, "no memory for a note");

    /* Both locks: each is enough to read it. */
    lock_take(&p->session->lock);
    lock_take(&p->lock);
    char *old = p->note;
    p->note = copy;
    lock_release(&p->lock);
    lock_release(&p->session->lock);
    free(old);
    return process_store(p, e);
}

void process_keep(struct process *p)
{
    recorder_add(p, TASK_STORE, 0);
}

deadline process_deadline(const struct process *p)
{
    return p->timeout_ns ? p->started_ns + p->timeout_ns : DEADLINE_NONE;
}
