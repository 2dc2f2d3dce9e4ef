/* The broker of docker and podman. How a box is made:
 *
 *   the image is there, or is pulled; a root that slept is an image, too
 *   a door is made (door.c), and a container whose init comes to it
 *   the peer at the door is the container's first process, by its pid
 *   init gets the socket of its owner (ADOPT), the keeper descriptors for groups and terminals
 *
 * On another machine there is no door: paddock-box is put into the container, and a stand-in here
 * has the socket of init's owner (far_box.c).
 *
 * The keeper's requests come one at a time, and each is safe to repeat: names follow from the box's
 * or the root's. A named root is the container that has it: one that has ended stays until
 * REMOVE_ROOT; BUILD makes an image of its files and begins with that. A broker whose keeper is
 * gone, or the next one, ends its containers but those elsewhere whose watch lives. */
#include "engine/broker.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "engine/docker_client.h"
#include "engine/docker_far.h"
#include "engine/door.h"
#include "engine/far_box.h"
#include "engine/nursery.h"
#include "engine/orphans.h"
#include "jail/cgroup_tree.h"
#include "jail/container_group.h"
#include "jail/sweep.h"
#include "wire/msg.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

/* A pull may take long; the keeper's own patience is what ends it. */
#define BUILD_PATIENCE (600 * NS_PER_S)
#define DOOR_PATIENCE  (20 * NS_PER_S)
#define CALL_PATIENCE  (20 * NS_PER_S)
#define LAYERS_MOST    120 /* engines take 125 */
#define NAME_SIZE      128

struct broker {
    const struct broker_config *config;
    int sock, null, init;
    struct docker docker;
    struct wire_id request; /* BUILD that is being answered */
    struct doors doors;
    struct container_groups groups;
    struct orphans orphans;
    struct nursery nursery;
    char store[17]; /* which state directory: roots belong to it, not to a keeper */
    bool ready;
};

/* ---- answers ---- */

static void reply(struct broker *b, struct wire_id id, enum wire_type type, const struct buf *out,
                  const int *fds, unsigned count)
{
    struct wire_head head = {.type = (uint16_t)type, .id = id};
    wire_send(b->sock, &head, out, fds, count, DEADLINE_NONE);
}

static void reply_result(struct broker *b, struct wire_id id, int r, const struct pd_err *e)
{
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);

    if (r < 0)
        msg_error_put(&out, e);
    reply(b, id, r < 0 ? WIRE_ERROR : WIRE_DONE, &out, NULL, 0);
}

/* ---- names ---- */

static void container_name(const struct broker *b, const char *box, char out[NAME_SIZE])
{
    snprintf(out, NAME_SIZE, "paddock-%s-%s", b->config->instance, box);
}

/* The image of a root: repository and tag. */
static void root_repository(const struct broker *b, char out[NAME_SIZE])
{
    snprintf(out, NAME_SIZE, SPEC_ROOT_IMAGES "%s", b->store);
}

static void root_image(const struct broker *b, const char *root, char out[NAME_SIZE])
{
    snprintf(out, NAME_SIZE, SPEC_ROOT_IMAGES "%s:%s", b->store, root);
}

/* A box's name becomes a part of paths: of its container, its door and its group. */
static int check_box_name(const char *name, struct pd_err *e)
{
    if (!group_name_ok(name) || strlen(name) > MSG_NAME_MAX)
        return pd_fail(e, PD_INVALID, "'%.60s' is no name of a box: up to %u of a-z 0-9 . _ -",
                       name, MSG_NAME_MAX);
    return 0;
}

/* So does a root's: of an image's tag. */
static int check_root_name(const char *name, struct pd_err *e)
{
    return name[0] ? spec_check_root_name(name, e)
                   : pd_fail(e, PD_INVALID, "'' is no name of a root");
}

/* The container of a box, if it is ours; docker_inspect_ours. */
static int find_box(struct broker *b, const char *box, struct docker_container *ret, deadline t,
                    struct pd_err *e)
{
    char name[NAME_SIZE];

    container_name(b, box, name);
    return docker_inspect_ours(&b->docker, name, b->config->instance, box, ret, t, e);
}

static bool is_no_box(const struct pd_err *e)
{
    return e->code == PD_NOT_FOUND || e->code == PD_CONFLICT;
}

/* ---- orphans ---- */

struct sweep {
    struct broker *broker;
    const char *instance;
    bool left; /* one did not end, or somebody holds it */
};

/* One with a root is only ended: the daemon says when its files may go. One elsewhere whose watch
 * lives is left to the next keeper. */
static int end_one(void *context, const struct docker_container *c, struct pd_err *e)
{
    struct sweep *s = context;
    struct broker *b = s->broker;
    bool held = b->docker.is_far && doors_hold(b->config->state_dir, s->instance, c->box);
    deadline t = deadline_in(CALL_PATIENCE);
    int r = held         ? -1
            : c->root[0] ? docker_kill(&b->docker, c->id, t, e)
                         : docker_remove(&b->docker, c->id, t, e);

    s->left |= r < 0;
    return 0;
}

/* Is none left? Until then its door stays, by which the next broker looks for it. */
static bool end_all(struct broker *b, const char *instance)
{
    struct sweep s = {b, instance, .left = false};
    struct pd_err e;
    return docker_list(&b->docker, LABEL_OWNER, instance, end_one, &s, deadline_in(CALL_PATIENCE),
                       &e) == 0 &&
           !s.left;
}

static void end_instance(const char *instance, void *arg)
{
    struct broker *b = arg;
    if (end_all(b, instance))
        doors_remove(b->config->state_dir, instance);
}

/* What needs the engine or the disk is made at the first request: its failure is that request's. */
static int set_up(struct broker *b, struct pd_err *e)
{
    if (b->ready)
        return 0;
    if (!b->docker.http && docker_open(&b->docker, b->config, e) < 0)
        return -1;
    if (doors_open(&b->doors, b->config->state_dir, b->config->instance, b->init, e) < 0)
        return -1;

    container_groups_open(&b->groups, b->config->instance, b->config->owner);
    doors_each_dead(b->config->state_dir, end_instance, b);
    orphans_suspect(&b->orphans); /* of a broker before this one, which was killed */
    b->ready = true;
    return 0;
}

/* ---- roots ---- */

struct find_root {
    const char *store;
    struct docker_container found; /* id "" when there is none */
};

static int match_root(void *context, const struct docker_container *c, struct pd_err *e)
{
    struct find_root *f = context;

    (void)e;
    /* Of two, the one that runs: the other one is what a broker left that died in between. */
    if (!strcmp(c->store, f->store) && (!f->found.id[0] || c->running))
        f->found = *c;
    return 0;
}

/* The container that has a root, dead or alive. found.id is "" when there is none. */
static int find_root(struct broker *b, const char *root, struct docker_container *ret, deadline t,
                     struct pd_err *e)
{
    struct find_root f = {.store = b->store};

    if (docker_list(&b->docker, LABEL_ROOT, root, match_root, &f, t, e) < 0)
        return -1;
    *ret = f.found;
    return 0;
}

/* As find_root, of a root that is to be changed: its box has ended, or is about to. */
static int find_idle_root(struct broker *b, const char *root, struct docker_container *ret,
                          deadline t, struct pd_err *e)
{
    if (find_root(b, root, ret, t, e) < 0)
        return -1;
    if (!ret->running)
        return 0;

    int r = docker_inspect(&b->docker, ret->id, ret, t, e);
    if (r < 0 && e->code == PD_NOT_FOUND) {
        *ret = (struct docker_container){.running = false}; /* removed just now */
        return 0;
    }
    if (r == 0)
        docker_await_end(&b->docker, ret);
    /* A container elsewhere does not end with its stand-in: it is ended when it is swept, or here.
     */
    if (r == 0 && ret->running && b->docker.is_far && !door_is_held(&b->doors, ret->box)) {
        r = docker_kill(&b->docker, ret->id, t, e);
        ret->running = r < 0;
    }
    if (r == 0 && ret->running)
        return pd_fail(e, PD_CONFLICT, "the root '%s' is in use", root);
    return r;
}

/* The image that a box with this root begins with: what is there of it already, or the spec's. */
static int image_of_root(struct broker *b, const struct spec *s, char out[IMAGE_TEXT_MAX],
                         deadline t, struct pd_err *e)
{
    char repository[NAME_SIZE], image[NAME_SIZE];
    struct docker_container old;

    root_repository(b, repository);
    root_image(b, s->root_name, image);
    if (find_idle_root(b, s->root_name, &old, t, e) < 0)
        return -1;
    if (old.id[0] &&
        (docker_commit(&b->docker, old.id, repository, s->root_name, false, t, e) < 0 ||
         docker_remove(&b->docker, old.id, t, e) < 0))
        return pd_wrap(e, "wake the root '%s'", s->root_name);

    int there = docker_has_image(&b->docker, image, t, e);
    if (there < 0)
        return -1;
    if (there == 0 && !s->image[0])
        return docker_fail_without_image(docker_kind(&b->docker), e);
    if (there == 0)
        return docker_need_image(&b->docker, s->image, out, t, e);
    snprintf(out, IMAGE_TEXT_MAX, "%s", image);
    return 0;
}

static int remove_root(struct broker *b, const char *root, struct pd_err *e)
{
    struct docker_container c;
    char image[NAME_SIZE];
    deadline t = deadline_in(CALL_PATIENCE);

    root_image(b, root, image);
    /* A broker that died may have left a second one. */
    do {
        if (find_idle_root(b, root, &c, t, e) < 0 ||
            (c.id[0] && docker_remove(&b->docker, c.id, t, e) < 0))
            return -1;
    } while (c.id[0] && !deadline_passed(t));
    return docker_remove_image(&b->docker, image, t, e);
}

/* A commit has nothing of a volume, and its files would be lost. Each adds a layer, and one more
 * than the engine takes would never be woken again. */
static int check_can_commit(struct broker *b, const char *container, deadline t, struct pd_err *e)
{
    struct docker_container c;

    if (docker_inspect(&b->docker, container, &c, t, e) < 0)
        return -1;
    if (c.volume[0])
        return pd_fail(
            e, PD_UNSUPPORTED,
            "the image of this sandbox has a volume at %.100s, which the engine does not "
            "keep: it cannot sleep or be copied",
            c.volume);

    int layers = docker_count_layers(&b->docker, c.image, t, e);
    if (layers >= LAYERS_MOST)
        return pd_fail(e, PD_UNSUPPORTED,
                       "this sandbox has %d layers, because it has slept or been copied often: it "
                       "cannot sleep or be copied any more; copy its files to a new one",
                       layers);
    return layers < 0 ? -1 : 0;
}

/* A root stays until REMOVE_ROOT anyway. Somebody else may have removed it. */
static int keep_root(struct broker *b, const char *root, struct pd_err *e)
{
    struct docker_container c;
    char image[NAME_SIZE];
    deadline t = deadline_in(CALL_PATIENCE);

    if (find_root(b, root, &c, t, e) < 0)
        return -1;
    if (c.id[0])
        return check_can_commit(b, c.id, t, e);

    root_image(b, root, image);
    int there = docker_has_image(&b->docker, image, t, e);
    if (there == 0)
        return pd_fail(e, PD_NOT_FOUND, "there is no root '%s'", root);
    return there < 0 ? -1 : 0;
}

static int copy_root(struct broker *b, const struct msg_copy *m, struct pd_err *e)
{
    struct docker_container c;
    char repository[NAME_SIZE], from[NAME_SIZE], to[NAME_SIZE];
    deadline t = deadline_in(m->patience);

    root_repository(b, repository);
    root_image(b, m->from, from);
    root_image(b, m->to, to);
    int there = docker_has_image(&b->docker, to, t, e);
    if (there < 0 || find_root(b, m->from, &c, t, e) < 0)
        return -1;
    if (there)
        return pd_fail(e, PD_CONFLICT, "there is a root '%s' already", m->to);

    if (c.id[0] && check_can_commit(b, c.id, t, e) < 0)
        return -1;
    if (c.id[0])
        return docker_commit(&b->docker, c.id, repository, m->to, m->freeze && c.running, t, e);
    there = docker_has_image(&b->docker, from, t, e);
    if (there == 0)
        return pd_fail(e, PD_NOT_FOUND, "there is no root '%s'", m->from);
    return there < 0 ? -1 : docker_tag(&b->docker, from, repository, m->to, t, e);
}

/* ---- boxes ---- */

/* The container's terminals, or a stand-in. An image's /dev may be a link, which from here would
 * lead to the host's files: none is followed. */
static int open_devpts(const struct broker *b, pid_t pid)
{
    char path[48];
    struct statfs fs;
    struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                           .resolve =
                               RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS};

    snprintf(path, sizeof path, "/proc/%d/root", (int)pid);
    auto_fd root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = root < 0 ? -1 : (int)syscall(SYS_openat2, root, "dev/pts", &how, sizeof how);
    if (fd >= 0 && fstatfs(fd, &fs) == 0 && fs.f_type == DEVPTS_SUPER_MAGIC)
        return fd;
    fd_done(&fd);
    return fcntl(b->null, F_DUPFD_CLOEXEC, 0);
}

static int adopt(int peer, int control, struct pd_err *e)
{
    struct wire_head head = {.type = WIRE_ADOPT, .id = wire_id_new()};
    int r = wire_send(peer, &head, NULL, &control, 1, deadline_in(CALL_PATIENCE));

    if (r == 0)
        return 0;
    errno = -r;
    return pd_fail_sys(e, "hand init its owner's socket");
}

/* An init that has its owner. `group`: -1 where there is none. */
struct box_init {
    pid_t pid;
    int process, group; /* pidfd; directory */
};

/* The engine may know more than that a container ended before something. Always -1. */
static int say_end(struct broker *b, const char *name, const char *before, deadline t,
                   struct pd_err *e)
{
    struct docker_container now;
    char why[160], words[160];

    if (e->code != PD_LOST || docker_inspect(&b->docker, name, &now, t, NULL) < 0)
        return -1;
    docker_say_end(&now, why, sizeof why);
    docker_last_words(&b->docker, name, words, sizeof words, t);
    return pd_fail(e, PD_LOST, "the container's init ended before %s: %s%s%s", before, why,
                   words[0] ? ": " : "", words);
}

/* From the container's start to an init that has its owner. */
static int meet(struct broker *b, const struct msg_build *m, const char *name,
                const struct docker_plan *plan, int listener, int control, deadline t,
                struct box_init *ret, struct pd_err *e)
{
    struct docker_container c;
    auto_fd process = -1;

    if (docker_create(&b->docker, name, plan, &c, t, e) < 0)
        return -1;

    auto_fd peer = door_wait(listener, c.pid, &process, deadline_in(DOOR_PATIENCE), e);
    if (peer < 0)
        return say_end(b, name, "it came to its door", t, e);

    int group = container_group_make(&b->groups, m->name, c.pid);
    if (adopt(peer, control, e) < 0) {
        fd_done(&group);
        return -1;
    }
    *ret = (struct box_init){.pid = c.pid, .process = fd_take(&process), .group = group};
    return 0;
}

/* The same on another machine: from the container's start to a stand-in that has its link. */
static int meet_far(struct broker *b, const char *name, struct docker_plan *plan, int lock,
                    int control, deadline t, struct box_init *ret, struct pd_err *e)
{
    struct docker_far far = {.program = BROKER_BOX_FD, .lease = b->config->lease, .dev = plan->dev};
    struct far_box box = {b->config, &b->nursery, .control = control, .lock = lock};
    struct docker_container c;

    box.secret.box = wire_id_new();
    random_bytes(box.secret.key, sizeof box.secret.key);
    wire_id_text(box.secret.box, far.box);
    memcpy(far.key, box.secret.key, sizeof far.key);
    plan->far = &far;
    if (docker_create(&b->docker, name, plan, &c, t, e) < 0)
        return -1;

    box.container = c.id;
    pid_t pid = far_box_start(&box, &ret->process, deadline_in(DOOR_PATIENCE), e);
    if (pid < 0)
        return say_end(b, name, "its link was up", t, e);
    ret->pid = pid;
    ret->group = -1;
    return 0;
}

/* Nothing of it stays, or the keeper's sweep will find it, or it has no door when it comes. */
static void unmake(struct broker *b, const char *name)
{
    struct docker_container half;
    deadline t = deadline_in(CALL_PATIENCE);

    orphans_suspect(&b->orphans);
    if (find_box(b, name, &half, t, NULL) == 0)
        (void)docker_remove(&b->docker, half.id, t, NULL);
    (void)container_group_remove(&b->groups, name);
    door_remove(&b->doors, name);
}

static int build(struct broker *b, const struct msg_build *m, int control, struct box_init *ret,
                 struct pd_err *e)
{
    const struct spec *s = &m->spec;
    deadline t = deadline_in(BUILD_PATIENCE);
    char image[IMAGE_TEXT_MAX], name[NAME_SIZE], path[640];

    if (check_box_name(m->name, e) < 0 || spec_check(s, e) < 0 ||
        docker_check_spec(docker_kind(&b->docker), s, e) < 0 ||
        docker_need_limits(&b->docker, t, e) < 0)
        return -1;
    int r = s->root_name[0] ? image_of_root(b, s, image, t, e)
                            : docker_need_image(&b->docker, s->image, image, t, e);
    if (r < 0)
        return -1;

    auto_fd place = b->docker.is_far ? door_hold(&b->doors, m->name, e)
                                     : door_make(&b->doors, m->name, path, e);
    if (place < 0)
        return -1;
    struct docker_plan plan = {.image = image,
                               .door = b->docker.is_far ? NULL : path,
                               .owner = b->config->instance,
                               .box = m->name,
                               .store = b->store,
                               .root = s->root_name,
                               .runtime = b->config->runtime,
                               .dev = s->profile == PROFILE_DEV,
                               .limits = s->limits};
    container_name(b, m->name, name);
    if ((b->docker.is_far ? meet_far(b, name, &plan, place, control, t, ret, e)
                          : meet(b, m, name, &plan, place, control, t, ret, e)) == 0)
        return 0;

    unmake(b, m->name);
    return -1;
}

/* For a keeper that listens; what it has no room for is not missed. */
static void tell_progress(void *context, const struct msg_progress *now)
{
    const struct broker *b = context;
    struct wire_head head = {.type = WIRE_PROGRESS, .id = b->request};
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);

    msg_progress_encode(&out, now);
    (void)wire_send(b->sock, &head, &out, NULL, 0, 0);
}

/* The keeper sends nothing but a CANCEL before it has its answer. It is left for the main loop. */
static bool is_wanted(void *context)
{
    const struct broker *b = context;
    struct pollfd more = {.fd = b->sock, .events = POLLIN};
    return poll(&more, 1, 0) <= 0;
}

static void do_build(struct broker *b, struct frame *f)
{
    struct pd_err e;
    struct msg_build m;
    auto_fd control = frame_take_fd(f, 0);
    struct box_init init = {.process = -1, .group = -1};

    b->request = f->head.id;
    b->docker.told = f->head.flags & BUILD_TELL ? tell_progress : NULL;
    b->docker.told_context = b;
    b->docker.is_wanted = is_wanted;
    int r = msg_build_decode(&f->payload, &m, &e) < 0 ? -1 : build(b, &m, control, &init, &e);
    b->docker.told = NULL;
    b->docker.is_wanted = NULL;
    if (r < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }

    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    auto_fd process = init.process, group = init.group;
    auto_fd devpts =
        b->docker.is_far ? fcntl(b->null, F_DUPFD_CLOEXEC, 0) : open_devpts(b, init.pid);
    struct msg_built built = {.rung = RUNG_BASIC, .init_pid = init.pid};
    msg_built_encode(&out, &built);
    int fds[4] = {group >= 0 ? group : b->null, devpts, process, b->null};
    struct wire_head head = {
        .type = WIRE_BUILT, .flags = b->docker.is_far ? BOX_IS_FAR : 0, .id = f->head.id};
    if (wire_send(b->sock, &head, &out, fds, 4, DEADLINE_NONE) == 0 || !b->docker.is_far)
        return;
    /* The keeper is gone, and the next one does not know of it. */
    (void)syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
    unmake(b, m.name);
}

static int decode_box(const struct frame *f, struct msg_sweep *ret, struct pd_err *e)
{
    return msg_sweep_decode(&f->payload, ret, e) < 0 ? -1 : check_box_name(ret->name, e);
}

/* Its init is gone, or is to go. What the engine knows of its end is told with DONE. */
static void do_sweep(struct broker *b, struct frame *f)
{
    struct pd_err e;
    struct msg_sweep m;
    struct docker_container c;
    char why[128] = "";
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    deadline t = deadline_in(CALL_PATIENCE);

    if (decode_box(f, &m, &e) < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }

    int r = find_box(b, m.name, &c, t, &e);
    if (r == 0) {
        docker_await_end(&b->docker, &c);
        docker_say_end(&c, why, sizeof why);
        r = c.root[0] ? docker_kill(&b->docker, c.id, t, &e)
                      : docker_remove(&b->docker, c.id, t, &e);
    } else if (is_no_box(&e)) {
        r = 0;
    }

    if (r == 0 && (r = container_group_remove(&b->groups, m.name)) < 0) {
        errno = -r;
        pd_fail_sys(&e, "remove the cgroup of %s", m.name);
    }
    if (r < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }

    door_remove(&b->doors, m.name);
    if (why[0])
        msg_key_encode(&out, &(struct msg_key){.key = why});
    reply(b, f->head.id, WIRE_DONE, &out, NULL, 0);
}

/* The pid of a container's init, for those layouts where its group is found by it. */
static int pid_of(struct broker *b, const char *box, pid_t *ret, struct pd_err *e)
{
    struct docker_container c;
    struct pd_err why;

    if (find_box(b, box, &c, deadline_in(CALL_PATIENCE), &why) < 0)
        return pd_fail(e, is_no_box(&why) ? PD_NOT_FOUND : why.code, "%s", why.msg);
    *ret = c.pid;
    return 0;
}

static int open_group(struct broker *b, const char *box, struct pd_err *e)
{
    pid_t pid = 0;

    if (b->groups.host.layout != CGROUP_HYBRID && pid_of(b, box, &pid, e) < 0)
        return -1;
    int fd = container_group_find(&b->groups, box, pid);
    if (fd >= 0)
        return fd;
    errno = -fd;
    return pd_fail_sys(e, "open the cgroup of %s", box);
}

static int strike(struct broker *b, const struct msg_sweep *m, struct pd_err *e)
{
    struct docker_container c;
    deadline t = deadline_in(CALL_PATIENCE);

    if (b->docker.is_far) {
        if (find_box(b, m->name, &c, t, e) < 0)
            return is_no_box(e) ? 0 : -1;
        return docker_kill(&b->docker, c.id, t, e);
    }

    if (m->group[0]) {
        auto_fd group = open_group(b, m->name, e);
        int r = group < 0 ? -1 : cgroup_command_kill(group, m->group);
        if (group < 0 || r == 0)
            return r;
        errno = -r;
        return pd_fail_sys(e, "kill %s of %s", m->group, m->name);
    }

    /* Also where the engine does not answer: its container dies with its init. */
    auto_fd group = open_group(b, m->name, e);
    if (group >= 0 && b->groups.host.layout == CGROUP_HYBRID)
        (void)group_kill(group);
    if (find_box(b, m->name, &c, t, e) < 0)
        return is_no_box(e) ? 0 : -1;
    return docker_kill(&b->docker, c.id, t, e);
}

static int thaw(struct broker *b, const struct msg_sweep *m, struct pd_err *e)
{
    struct docker_container c;
    deadline t = deadline_in(CALL_PATIENCE);

    if (b->docker.is_far)
        return find_box(b, m->name, &c, t, e) < 0 ? -1 : docker_unpause(&b->docker, c.id, t, e);
    auto_fd group = open_group(b, m->name, e);
    int r = group < 0 ? -1 : group_freeze(group, 0, 0);
    if (group < 0 || r == 0)
        return r;
    errno = -r;
    return pd_fail_sys(e, "resume %s", m->name);
}

/* Of a container that waits for somebody to use it. */
static int check(struct broker *b, const struct msg_sweep *m, struct pd_err *e)
{
    struct docker_container c;
    deadline t = deadline_in(CALL_PATIENCE);

    if (find_box(b, m->name, &c, t, e) < 0)
        return -1;
    if (!c.running || c.paused)
        return pd_fail(e, PD_CONFLICT, "its container is %.16s", c.paused ? "paused" : c.status);

    int same = docker_is_current(&b->docker, &c, t, e);
    if (same == 0)
        return pd_fail(e, PD_CONFLICT, "image %.150s is another one now", c.from);
    return same < 0 ? -1 : 0;
}

static int decode_root(const struct frame *f, struct msg_key *ret, struct pd_err *e)
{
    return msg_key_decode(&f->payload, ret, e) < 0 ? -1 : check_root_name(ret->key, e);
}

/* Those that are answered with DONE or ERROR. */
static int do_plain(struct broker *b, const struct frame *f, struct pd_err *e)
{
    struct msg_sweep s;
    struct msg_copy c;
    struct msg_key k;

    switch (f->head.type) {
    case WIRE_STRIKE:
        return decode_box(f, &s, e) < 0 ? -1 : strike(b, &s, e);
    case WIRE_CHECK:
        return decode_box(f, &s, e) < 0 ? -1 : check(b, &s, e);
    case WIRE_THAW:
        return decode_box(f, &s, e) < 0 ? -1 : thaw(b, &s, e);
    case WIRE_COPY:
        if (msg_copy_decode(&f->payload, &c, e) < 0 || check_root_name(c.from, e) < 0 ||
            check_root_name(c.to, e) < 0)
            return -1;
        return copy_root(b, &c, e);
    case WIRE_REMOVE_ROOT:
        return decode_root(f, &k, e) < 0 ? -1 : remove_root(b, k.key, e);
    case WIRE_KEEP_ROOT:
        return decode_root(f, &k, e) < 0 ? -1 : keep_root(b, k.key, e);
    default:
        return pd_fail(e, PD_PROTOCOL, "message type %u is not for a broker", f->head.type);
    }
}

static void handle(struct broker *b, struct frame *f)
{
    struct pd_err e;

    if (f->head.type == WIRE_CANCEL)
        return; /* its BUILD was answered */

    if (set_up(b, &e) < 0) {
        reply_result(b, f->head.id, -1, &e);
        return;
    }
    switch (f->head.type) {
    case WIRE_BUILD:
        do_build(b, f);
        return;
    case WIRE_SWEEP:
        do_sweep(b, f);
        return;
    default: {
        int r = do_plain(b, f, &e);
        reply_result(b, f->head.id, r, &e);
    }
    }
}

/* The next request. False when the keeper is gone. */
static bool next_request(struct broker *b, struct frame *f)
{
    for (;;) {
        struct pd_err e;
        int r = wire_recv(b->sock, f, b->ready ? b->orphans.next : DEADLINE_NONE, &e);
        if (r > 0)
            return true;
        if (r == 0 || e.code != PD_TIMEOUT)
            return false;
        doors_each_dead(b->config->state_dir, end_instance, b); /* what could not be ended */
        orphans_end(&b->orphans, &b->docker, &b->doors, b->store, b->config->instance);
    }
}

_Noreturn void docker_main(const struct broker_config *c, int sock, int init_fd)
{
    struct broker b = {.config = c, .sock = sock, .init = init_fd, .doors = {.dir = -1}};
    struct pd_err e;
    struct frame f = FRAME_INIT;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_IGN);
    (void)umask(022); /* a container's user must get through its door */
    (void)fcntl(sock, F_SETFD, FD_CLOEXEC);
    b.null = open("/dev/null", O_RDWR | O_CLOEXEC);
    docker_store_name(c->state_dir, b.store);
    (void)frame_reserve(&f);
    if (doors_have_others(c->state_dir, c->instance))
        (void)set_up(&b, &e); /* what a dead keeper has left does not wait for a request */
    while (next_request(&b, &f)) {
        handle(&b, &f);
        frame_reset(&f);
    }

    /* The keeper is gone, and with it the owner of every box. */
    if (set_up(&b, &e) == 0) {
        if (end_all(&b, c->instance))
            doors_leave(&b.doors, c->state_dir, c->instance);
        sweep_instance(&b.groups.host);
    }
    docker_close(&b.docker);
    _exit(0);
}
