/* How a box's link comes here. By calls: the switchboard hands them over, and the TLS of each ends
 * in the carrier. By bucket: a process of the carrier's writes and reads objects. */
#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/cloudrun_state.h"
#include "engine/letters_stream.h"
#include "engine/switchboard.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#define LOOK_EVERY (2 * NS_PER_S)
#define CALL_WAIT  (240 * NS_PER_S) /* Google gives a container as long to start */
#define LOOK_WAIT  (5 * NS_PER_S)
#define SLICE_MS   200

static int open_keys(struct cloudrun *b, struct pd_err *e)
{
    if (!b->keys)
        b->keys = called_keys_open(b->remote.config->state_dir, e);
    return b->keys ? 0 : -1;
}

/* ---- one that is being made ---- */

int cloudrun_way_open(struct cloudrun *b, const struct remote_plan *p, struct cloudrun_sign *ret,
                      deadline t, struct pd_err *e)
{
    *ret = (struct cloudrun_sign){.board = -1};
    snprintf(ret->prefix, sizeof ret->prefix, "%s.%s", p->name, p->link);
    if (b->bucket[0])
        return letters_root(b->remote.config->state_dir, ret->prefix, ret->root, e);
    if (open_keys(b, e) < 0)
        return -1;
    ret->board = switchboard_join(b->listen, p->link, t, e);
    return ret->board < 0 ? -1 : 0;
}

void cloudrun_way_close(struct cloudrun_sign *s)
{
    fd_done(&s->board);
    explicit_bzero(s->root, sizeof s->root);
}

void cloudrun_way_words(struct cloudrun *b, const struct cloudrun_sign *s, char way[CLOUDRUN_WAY],
                        char pin[CLOUDRUN_WAY])
{
    pin[0] = 0;
    if (b->bucket[0]) {
        snprintf(way, CLOUDRUN_WAY, "bucket=%s/%s", b->mount, s->prefix);
        return;
    }
    snprintf(way, CLOUDRUN_WAY, "call=%s", b->call);
    snprintf(pin, CLOUDRUN_WAY, "pin=");
    called_keys_pin(b->keys, pin + 4);
}

/* One look into the bucket: a server that does not answer is asked again by the next, so that what
 * else may happen meanwhile is seen. */
static int look_into_bucket(struct cloudrun *b, const struct cloudrun_sign *s, deadline t,
                            struct pd_err *e)
{
    deadline look = deadline_in(LOOK_WAIT);
    struct pd_err why;
    int r = letters_are_awaited(&b->gcs, s->prefix, s->root, look < t ? look : t, &why);

    if (r < 0 && why.code == PD_TIMEOUT && remote_is_wanted(&b->remote))
        return 0;
    if (r < 0)
        *e = why;
    return r;
}

/* 1 when the box has called, or has written its first object; 0 when not yet. */
static int look_for_sign(struct cloudrun *b, const struct cloudrun_sign *s, deadline t,
                         struct pd_err *e)
{
    struct pollfd p = {.fd = s->board, .events = POLLIN};
    bool gone = false;
    int n = poll(&p, 1, SLICE_MS);

    if (b->bucket[0])
        return look_into_bucket(b, s, t, e);
    if (n <= 0)
        return 0;
    auto_fd call = switchboard_take(s->board, &gone);
    if (gone && call < 0)
        return pd_fail(e, PD_LOST, "the process that takes calls of boxes has ended");
    return call >= 0;
}

static int say_silent(const struct cloudrun *b, struct pd_err *e)
{
    if (b->bucket[0])
        return pd_fail(e, PD_TIMEOUT,
                       "the execution runs, and writes nothing into the bucket '%.80s': its "
                       "service account needs the role Storage Object User there, and the volume "
                       "the mount options uid=60001 and gid=60001",
                       b->bucket);
    return pd_fail(e, PD_TIMEOUT,
                   "the execution runs, and nobody calls %.100s from it: let its network reach "
                   "that address, and that one lead to cloudrun_listen",
                   b->call);
}

/* A call is not answered: the carrier takes the next one. */
int cloudrun_way_await(struct cloudrun *b, const char *id, const struct cloudrun_sign *s,
                       deadline t, struct pd_err *e)
{
    deadline look = deadline_in(LOOK_EVERY), end = deadline_in(CALL_WAIT);

    t = end < t ? end : t;
    for (;;) {
        struct cloudrun_execution now;

        if (!remote_is_wanted(&b->remote))
            return pd_fail(e, PD_CONFLICT, "the sandbox is not wanted any more");
        if (deadline_passed(t))
            return say_silent(b, e);
        int r = look_for_sign(b, s, t, e);
        if (r)
            return r < 0 ? -1 : 0;

        if (!deadline_passed(look))
            continue;
        look = deadline_in(LOOK_EVERY);
        if (cloudrun_read_one(b, id, &now, t, e) < 0)
            return -1;
        if (now.over)
            return pd_fail(e, PD_LOST, "%s", now.why);
    }
}

bool cloudrun_way_clear(struct cloudrun *b, const char *instance, const char *box, deadline t)
{
    char name[REMOTE_NAME_MAX + 1], all[REMOTE_NAME_MAX + 2];

    if (!b->bucket[0])
        return true;
    remote_name(instance, box, name);
    snprintf(all, sizeof all, "%s.", name);
    return gcs_remove_all(&b->gcs, all, t, NULL) == 0;
}

/* ---- one that is there ---- */

/* "EXECUTION/LINK", and "/PREFIX" behind it where the box is by bucket. */
void cloudrun_way_place(const struct cloudrun *b, const char *id, const char *link,
                        const struct cloudrun_sign *s, char ret[REMOTE_PLACE_MAX])
{
    snprintf(ret, REMOTE_PLACE_MAX, "%s/%s%s%s", id, link, b->bucket[0] ? "/" : "",
             b->bucket[0] ? s->prefix : "");
}

static struct byte_stream *take_call(struct cloudrun *b, deadline t, struct pd_err *e)
{
    bool gone = false;

    for (;;) {
        struct pollfd p = {.fd = b->board, .events = POLLIN};
        int call = -1, last = -1;
        if (poll(&p, 1, deadline_poll_ms(t)) < 0 && errno != EINTR) {
            pd_fail_sys(e, "wait for a call");
            return NULL;
        }
        /* Those before the last one were given up by the box. */
        while ((call = switchboard_take(b->board, &gone)) >= 0) {
            fd_done(&last);
            last = call;
        }
        struct byte_stream *s = last >= 0 ? called_stream(b->keys, last, t, e) : NULL;
        if (s)
            return s;
        if (gone)
            fd_done(&b->board);
        if (gone || deadline_passed(t)) {
            pd_fail(e, PD_TIMEOUT, "the box has not called");
            return NULL;
        }
    }
}

static struct byte_stream *reach_by_call(struct cloudrun *b, const char *id, const char *link,
                                         deadline t, struct pd_err *e)
{
    struct cloudrun_execution now;
    struct pd_err why;

    if (open_keys(b, e) < 0)
        return NULL;
    if (b->board < 0)
        b->board = switchboard_join(b->listen, link, t, e);
    struct byte_stream *s = b->board >= 0 ? take_call(b, t, e) : NULL;
    if (s)
        return s;

    /* Does it not call because it cannot, or because it is no more? */
    int r = cloudrun_read_one(b, id, &now, deadline_in(LOOK_WAIT), &why);
    if (r < 0 && why.code == PD_NOT_FOUND)
        pd_fail(e, PD_LOST, "%s", why.msg);
    else if (r == 0 && now.over)
        pd_fail(e, PD_LOST, "%s", now.why);
    return NULL;
}

static struct gcs *open_bucket(const struct broker_config *c)
{
    struct remote *fresh = remote_open(c, NULL);
    return fresh ? &((struct cloudrun *)fresh)->gcs : NULL;
}

/* There is nobody who would hang up: whether there is a box at all is asked first. */
static struct byte_stream *reach_by_bucket(struct cloudrun *b, const char *id, const char *prefix,
                                           deadline t, struct pd_err *e)
{
    uint8_t root[LETTERS_KEY];
    struct cloudrun_execution now;

    if (cloudrun_read_one(b, id, &now, t, e) < 0)
        return NULL;
    if (now.over) {
        pd_fail(e, PD_LOST, "%s", now.why);
        return NULL;
    }
    if (letters_root(b->remote.config->state_dir, prefix, root, e) < 0)
        return NULL;

    struct byte_stream *s =
        letters_stream(&b->gcs, prefix, root, &b->last_call, open_bucket, b->remote.config, t, e);
    explicit_bzero(root, sizeof root);
    return s;
}

struct byte_stream *cloudrun_reach(struct remote *r, const char *place, deadline t,
                                   struct pd_err *e)
{
    struct cloudrun *b = (struct cloudrun *)r;
    char both[REMOTE_PLACE_MAX], id[RENTED_ID], link[33];

    snprintf(both, sizeof both, "%s", place);
    char *slash = strchr(both, '/'), *prefix = slash ? strchr(slash + 1, '/') : NULL;
    if (prefix)
        *prefix++ = 0;
    if (rented_place_read(both, id, link, e) < 0)
        return NULL;
    if (!prefix != !b->bucket[0]) {
        pd_fail(e, PD_LOST, "the sandbox was made when cloudrun_bucket was another");
        return NULL;
    }
    return prefix ? reach_by_bucket(b, id, prefix, t, e) : reach_by_call(b, id, link, t, e);
}
