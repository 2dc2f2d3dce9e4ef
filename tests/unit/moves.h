/* moves: providers of one world between which sessions move: local (no isolation), jail (full) and,
 * where a test wants three, middle (basic). A worker of theirs packs and unpacks the one number
 * that a root has as its content. */
#pragma once

#include "world.h"

#include "router/router.h"
#include "wire/record.h"

#include <sched.h>

static struct provider weak, middle, strong;
static int break_copy;           /* 1: half of an archive, 2: the other side does not take it */
static const char *missing_path; /* a worker does not find it */
static char paths[8][64];        /* what workers packed and unpacked, in this order */
static atomic_uint path_count;
static bool is_placed;   /* local has its workspace at PLACE */
static bool jail_is_low; /* jails have basic isolation, whatever the provider said */

#define PLACE "/workspace/of/a/host"

static enum rung rung_weak(struct provider *p)
{
    (void)p;
    return RUNG_NONE;
}

static enum rung rung_middle(struct provider *p)
{
    (void)p;
    return RUNG_BASIC;
}

static enum rung rung_strong(struct provider *p)
{
    (void)p;
    return RUNG_FULL;
}

static enum rung rung_of_box(const struct box *b)
{
    const char *name = ((const struct world_box *)b)->provider;
    if (!strcmp(name, "local"))
        return RUNG_NONE;
    return jail_is_low || !strcmp(name, "middle") ? RUNG_BASIC : RUNG_FULL;
}

static bool place_of_box(struct box *b, struct box_place *ret)
{
    assert_string_equal(box_of(b)->provider, "local");
    *ret = (struct box_place){.workspace = PLACE, .home = PLACE, .shell = "/bin/bash"};
    ret->has_bash = true;
    return is_placed;
}

/* ---- workers ---- */

struct job {
    struct world_box *box;
    struct wire_id id;
    int in, out;
    bool packs, is_workspace, is_missing;
};

static void say(int fd, const struct record *r)
{
    struct buf b = BUF_INIT(4096);
    record_encode(&b, r);
    (void)!write(fd, b.data, b.len); /* to nobody, when it was given up */
    buf_done(&b);
}

/* NULL when it was deleted. */
static int *find_content(struct world_box *b)
{
    int at = root_find(the_daemon->world, b->root);
    return at < 0 ? NULL : &the_daemon->world->roots[at].content;
}

static int *content_of(struct world_box *b)
{
    int *content = find_content(b);
    assert_non_null(content);
    return content;
}

static void *work(void *arg)
{
    struct job *j = arg;
    int content = 0, status = 0, *kept = find_content(j->box);

    if (!kept) {
        status = SIGKILL; /* it ends with its box */
    } else if (j->is_missing) {
        say(j->out, &(struct record){.kind = RECORD_ERROR,
                                     .error = {.code = PD_NOT_FOUND, .text = "no such file"}});
        status = 1 << 8;
    } else if (j->packs) {
        say(j->out, &(struct record){.kind = RECORD_ENTRY, .entry = {.path = "", .target = ""}});
        size_t len = break_copy == 1 ? 2 : sizeof content;
        if (j->is_workspace)
            (void)!write(j->out, kept, len);
        status = break_copy == 1 ? 1 << 8 : 0;
    } else {
        size_t got = 0;
        ssize_t n;
        while ((n = read(j->in, (char *)&content + got, sizeof content - got)) > 0)
            got += (size_t)n;
        if (break_copy == 2) {
            say(j->out, &(struct record){.kind = RECORD_ERROR,
                                         .error = {.code = PD_NO_SPACE, .text = "full"}});
            status = 1 << 8;
        } else {
            if (got == sizeof content) {
                tick(the_daemon->world);
                *kept = content;
            }
            say(j->out, &(struct record){.kind = RECORD_TAR_DONE});
        }
    }

    close(j->in);
    close(j->out);
    world_ended(j->box, j->id, (struct msg_exited){.pid = 8, .status = status});
    free(j);
    return NULL;
}

static int exec_worker(struct box *box, const struct box_command *c, struct pd_err *e)
{
    uint32_t pos = 0;
    if (!(c->flags & EXEC_WORKER))
        return world_exec(box, c, e);

    pthread_t thread;
    struct job *j = malloc(sizeof *j);
    const char *verb = msg_list_next(&c->exec.argv, &pos);
    *j = (struct job){.box = box_of(box),
                      .id = c->id,
                      .in = dup(c->fds[0]),
                      .out = dup(c->fds[1]),
                      .packs = !strcmp(verb, "tar")};
    const char *path = msg_list_next(&c->exec.argv, &pos);
    j->is_workspace = !strcmp(path, "/workspace") || !strcmp(path, PLACE);
    j->is_missing = missing_path && !strcmp(path, missing_path);
    snprintf(paths[atomic_fetch_add(&path_count, 1) % COUNT(paths)], sizeof paths[0], "%s", path);
    assert_int_equal(pthread_create(&thread, NULL, work, j), 0);
    pthread_detach(thread);
    return 0;
}

/* ---- two providers, or three ---- */

static void two(struct sessions_config *c)
{
    struct provider_table *t = &the_daemon->providers;
    struct pd_err e;
    (void)c;

    weak = middle = strong = the_daemon->provider;
    weak.name = "local";
    weak.best = rung_weak;
    strong.name = "jail";
    strong.best = rung_strong;
    middle.name = "middle";
    middle.best = rung_middle;
    weak.rung = middle.rung = strong.rung = rung_of_box;
    weak.exec = middle.exec = strong.exec = exec_worker;
    weak.count = middle.count = strong.count = NULL;
    weak.place = place_of_box;
    t->list[0] = &weak;
    assert_int_equal(provider_table_add(t, &strong, &e), 0);
}

static inline void three(struct sessions_config *c)
{
    struct pd_err e;
    two(c);
    assert_int_equal(provider_table_add(&the_daemon->providers, &middle, &e), 0);
}

static struct daemon *begin_with(void **state, struct world *w,
                                 void (*change)(struct sessions_config *c))
{
    struct place *place = *state;
    break_copy = 0;
    missing_path = NULL;
    is_placed = jail_is_low = false;
    signal(SIGPIPE, SIG_IGN);
    return daemon_begin(w, place->dir, 1, change);
}

static struct daemon *begin(void **state, struct world *w)
{
    return begin_with(state, w, two);
}

static struct session *make_in(struct daemon *d, const char *provider, enum run_mode mode)
{
    struct session_request r = {.provider = provider, .mode = mode};
    struct session *s = make_one(d, &r);
    *content_of(box_of(s->box)) = 42;
    return s;
}

static inline bool has_left(struct session *s)
{
    lock_take(&s->lock);
    bool left = s->other_root != NULL;
    lock_release(&s->lock);
    return left;
}

static inline void is_at(struct daemon *d, struct session *s, const char *provider)
{
    assert_string_equal(s->info.provider, provider);
    assert_string_equal(s->provider->name, provider);
    assert_string_equal(box_of(s->box)->provider, provider);
    assert_int_equal(*content_of(box_of(s->box)), 42);
    assert_int_equal(box_count(d->world), 1);
    assert_int_equal(root_count(d->world), 1);
    assert_null(s->other_root);
}

static inline void must_end(struct daemon *d, struct session *s)
{
    struct pd_err e;
    assert_int_equal(session_end(s, END_KILLED, "test", &e), 0);
    assert_int_equal(box_count(d->world), 0);
    assert_int_equal(root_count(d->world), 0);
    session_unref(s);
}

static inline int move_to(struct session *s, struct provider *to, unsigned flags,
                          const char *reason, struct pd_err *e)
{
    struct session_goal goal = {.to = to, .flags = flags, .reason = reason};
    return session_move(s, &goal, e);
}

static inline int run(struct session *s, const char *line, enum run_mode mode,
                      struct placement *place, struct pd_err *e)
{
    struct process_request r = {.command = line,
                                .argv = {.text = ""},
                                .env = {.text = ""},
                                .mode = mode,
                                .placement = place};
    struct process *p;
    struct pd_err ignored;
    bool known;

    if (session_start(s, &r, &p, &known, e) < 0)
        return -1;
    struct watch w;
    assert_int_equal(process_watch(p, &w, &ignored), 0);
    assert_int_equal(process_stop(p, STOP_KILLED, &ignored), 0);
    assert_int_equal(process_wait(p, &w, -1, deadline_in(60 * NS_PER_S), &ignored), 0);

    process_unwatch(p, &w);
    process_unref(p);
    return 0;
}
