/* Complete kits: jails of the usual kind, with init in them, that wait for somebody to ask.
 *
 * A kit is built by the same BUILD as any jail, with the usual limits, but its init has a socket of
 * the keeper's and waits there. A CREATE that fits gets it: limits that differ are set while nobody
 * is in the jail but init, and ADOPT brings init its owner's socket. A kit is used once. One that
 * has died, or does not take its limits, is thrown away, and the next one or a builder serves the
 * request.
 *
 * A kit fits every spec of its profile without a root of its own, binds and network. For all others
 * builders make plain kits (kit.c). How many of which kind there are follows from what the last
 * creations wanted.
 *
 * Of the images that were used lately there are kits, too. One of those keeps nobody from removing
 * its image: it waits without the lock, takes it when it is given out, and is thrown away when the
 * image is gone by then, or when any name of the store means another one than before. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/root.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* Rootless, and where limits are init's business, there are only plain ones. */
static int can_complete(struct keeper *k)
{
    return !k->rootless && k->kind->is_jail && keeper_cgroups(k)->layout != CGROUP_NONE;
}

/* The place of an image in the table, or KIT_IMAGES. */
static unsigned place_of(const struct keeper *k, const char *image)
{
    unsigned i = 0;
    while (i < KIT_IMAGES && strcmp(k->kit_images[i], image) != 0)
        i++;
    return i;
}

static bool is_on_image(unsigned kind)
{
    return kind >= KIT_ON_IMAGE;
}

static unsigned image_of(unsigned kind)
{
    return (kind - KIT_ON_IMAGE) / PROFILE_COUNT;
}

static enum profile profile_of(unsigned kind)
{
    return is_on_image(kind) ? (enum profile)((kind - KIT_ON_IMAGE) % PROFILE_COUNT)
                             : (enum profile)kind;
}

/* The sizes of an overlay's upper layer cannot be changed any more. */
static bool has_usual_files(const struct limits *l)
{
    struct limits usual = LIMITS_DEFAULT;
    return l->memory == usual.memory && l->disk == usual.disk && l->files == usual.files;
}

/* Which kit a spec wants: a complete one of its profile, or of its image, or a plain one. */
static unsigned kind_of(struct keeper *k, const struct spec *s)
{
    int usual = !s->root_dir[0] && !s->root_name[0] && !s->bind_count && s->network == NETWORK_NONE;
    if (!usual || !can_complete(k))
        return KIT_PLAIN;
    if (!s->image[0])
        return s->profile;

    unsigned place = place_of(k, s->image);
    return place < KIT_IMAGES && has_usual_files(&s->limits)
               ? KIT_ON_IMAGE + place * PROFILE_COUNT + s->profile
               : KIT_PLAIN;
}

void kits_begin(struct keeper *k)
{
    memset(k->recent, k->rootless ? KIT_PLAIN : PROFILE_STRICT, sizeof k->recent);
}

/* How many of `all` kits should be of this kind. */
static unsigned share(struct keeper *k, unsigned kind, unsigned all)
{
    unsigned asked = 0;

    for (unsigned i = 0; i < KITS_RECENT; i++)
        asked += (can_complete(k) ? k->recent[i] : KIT_PLAIN) == kind;
    return (all * asked + KITS_RECENT - 1) / KITS_RECENT;
}

static unsigned count(const struct keeper *k, unsigned kind)
{
    unsigned n = 0;
    for (const struct kjail *j = k->kits; j; j = j->kit_next)
        n += j->kit_kind == kind;
    return n;
}

/* The kind of which there are too few complete kits, or KIT_KINDS. */
static unsigned lacking_kind(struct keeper *k)
{
    unsigned kind = 0;
    while (kind < KIT_KINDS &&
           (kind == KIT_PLAIN ||
            count(k, kind) >= share(k, kind, k->config->builders * k->config->kits)))
        kind++;
    return kind;
}

static int lacks_plain(struct keeper *k, const struct worker *w)
{
    return w->kit_count < share(k, KIT_PLAIN, k->config->kits);
}

int kits_lacking(struct keeper *k, const struct worker *w)
{
    if (!w->builds || w->prepare_failed || !k->config->kits)
        return 0;
    return lacks_plain(k, w) || lacking_kind(k) != KIT_KINDS;
}

/* Of every kind, complete ones in all and plain ones of each builder that can make any. */
static bool half_are_there(struct keeper *k)
{
    unsigned plain = share(k, KIT_PLAIN, k->config->kits);

    for (unsigned kind = 0; kind < KIT_KINDS; kind++)
        if (kind != KIT_PLAIN &&
            2 * count(k, kind) < share(k, kind, k->config->builders * k->config->kits))
            return false;
    for (unsigned i = 0; i < k->worker_count; i++)
        if (k->workers[i].builds && !k->workers[i].prepare_failed &&
            2 * k->workers[i].kit_count < plain)
            return false;
    return true;
}

deadline kits_quiet_at(struct keeper *k)
{
    return k->first_command_at > k->quiet_at && half_are_there(k) ? k->first_command_at
                                                                  : k->quiet_at;
}

void kit_leave(struct keeper *k, struct kjail *j)
{
    for (struct kjail **at = &k->kits; *at; at = &(*at)->kit_next)
        if (*at == j) {
            *at = j->kit_next;
            return;
        }
}

/* A kind that nobody has asked for in a while makes room. */
static void drop_unwanted(struct keeper *k)
{
    for (struct kjail *j = k->kits, *next; j; j = next) {
        next = j->kit_next;
        if (j->state == JAIL_KIT && !share(k, j->kit_kind, 1))
            jail_doom(k, j);
    }
}

/* When the names of images last changed: the file is a new one then. */
static struct timespec names_at(const struct keeper *k)
{
    char path[4200];
    struct stat st;

    snprintf(path, sizeof path, "%s/images/names", k->config->state_dir);
    return stat(path, &st) == 0 ? st.st_mtim : (struct timespec){0};
}

static bool is_as_before(const struct kjail *kit, struct timespec now)
{
    return kit->names_at.tv_sec == now.tv_sec && kit->names_at.tv_nsec == now.tv_nsec;
}

/* Nobody makes kits of an image that cannot be used. */
static void forget_image(struct keeper *k, unsigned place)
{
    k->kit_images[place][0] = 0;
    for (unsigned i = 0; i < KITS_RECENT; i++)
        if (is_on_image(k->recent[i]) && image_of(k->recent[i]) == place)
            k->recent[i] = KIT_PLAIN;
    for (struct kjail *j = k->kits, *next; j; j = next) {
        next = j->kit_next;
        if (is_on_image(j->kit_kind) && image_of(j->kit_kind) == place) {
            j->kit_kind = KIT_KINDS; /* of none: it fits nobody */
            jail_doom(k, j);
        }
    }
}

/* An image that is asked for gets a place, if there is one that nobody wanted in a while. */
static void note_image(struct keeper *k, const struct spec *s)
{
    if (!s->image[0] || s->root_name[0] || place_of(k, s->image) < KIT_IMAGES)
        return;
    for (unsigned place = 0; place < KIT_IMAGES; place++) {
        unsigned wanted = 0;
        for (unsigned i = 0; i < KITS_RECENT; i++)
            wanted += is_on_image(k->recent[i]) && image_of(k->recent[i]) == place;
        if (wanted)
            continue;
        forget_image(k, place);
        snprintf(k->kit_images[place], sizeof *k->kit_images, "%s", s->image);
        return;
    }
}

void kit_built(struct kjail *j)
{
    j->state = JAIL_KIT;
    if (j->lock >= 0)
        (void)flock(j->lock, LOCK_UN); /* whoever gets it takes the lock again */
}

void kit_failed(struct keeper *k, struct worker *w, const struct kjail *j)
{
    if (j->kit_kind == KIT_KINDS)
        return;
    if (is_on_image(j->kit_kind))
        forget_image(k, image_of(j->kit_kind));
    else
        w->prepare_failed = 1; /* do not try again and again; requests tell the reason */
}

/* Holds the image of a kit that is given out. False: it is gone, or is being removed. */
static bool hold_image(const struct kjail *kit)
{
    struct stat st;
    if (!kit->on_image)
        return true;
    if (kit->lock < 0 || flock(kit->lock, LOCK_SH | LOCK_NB) < 0 || fstat(kit->lock, &st) < 0 ||
        st.st_nlink == 0)
        return false;
    (void)futimens(kit->lock, NULL); /* whoever makes room asks when it was used */
    return true;
}

static void build_kit(struct keeper *k, struct worker *w, unsigned kind)
{
    struct pd_err e;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    auto_fd ours = pair[0], theirs = pair[1];

    struct kjail *j = jail_new(k, wire_id_new());
    if (!j)
        return;
    j->slot = range_take_idle(&k->ranges, &e);
    if (j->slot == RANGE_NONE) {
        jail_forget(k, j);
        return;
    }

    keeper_next_name(k, j->name);
    auto_buf out = BUF_INIT(WIRE_PAYLOAD_MAX);
    struct msg_build m = {.slot = j->slot, .waits = 1, .name = j->name, .spec = SPEC_DEFAULT};
    m.spec.profile = profile_of(kind);
    if (is_on_image(kind))
        m.spec.image = k->kit_images[image_of(kind)];
    j->names_at = names_at(k); /* before the builder looks */
    msg_build_encode(&out, &m);
    if (worker_send(w, WIRE_BUILD, j->id, &out, &theirs, 1) < 0) {
        jail_forget(k, j);
        return;
    }

    j->state = JAIL_BUILDING;
    j->kit_kind = kind;
    j->adopt = fd_take(&ours);
    j->kit_next = k->kits;
    k->kits = j;
}

void kits_refill(struct keeper *k, struct worker *w)
{
    drop_unwanted(k);

    unsigned lacking = lacking_kind(k);
    if (lacking != KIT_KINDS && deadline_passed(k->kits_at) && jail_files_suffice(k))
        build_kit(k, w, lacking);
    else if (lacks_plain(k, w))
        worker_prepare(k, w);
}

static bool fits(struct keeper *k, const struct kjail *j, const struct spec *s)
{
    return j->state == JAIL_KIT && j->kit_kind == kind_of(k, s) && j->rung >= s->min_rung;
}

int kit_is_there(struct keeper *k, const struct spec *s)
{
    for (struct kjail *j = k->kits; j; j = j->kit_next)
        if (fits(k, j, s))
            return 1;
    return 0;
}

/* Sets what differs from the limits that the kit was made with. Nobody but init is in there, and
 * init does nothing: this takes no time. */
static int set_limits(struct keeper *k, const struct kjail *kit, const struct limits *l)
{
    struct limits usual = LIMITS_DEFAULT;
    struct pd_err e;
    int memory = l->memory != usual.memory;

    if ((memory || l->pids != usual.pids || l->cpu_milli != usual.cpu_milli) &&
        cgroup_limit(keeper_cgroups(k), kit->name, l, &e) < 0)
        return -1;
    if (memory || l->disk != usual.disk || l->files != usual.files)
        return root_resize(kit->pid, l);
    return 0;
}

/* A field of /proc/PID/stat, numbered as in proc(5), from the third on. */
static const char *stat_field(const char *text, unsigned number)
{
    const char *at = strrchr(text, ')'); /* the name before it may have anything in it */
    for (unsigned i = 2; at && i < number; i++)
        at = strchr(at + 1, ' ');
    return at ? at + 1 : "";
}

/* The state of a kit's init. */
enum kit_init {
    KIT_WAITS, /* for its owner */
    KIT_RUNS,  /* on its way to where it waits; or it was killed, and is not marked yet */
    KIT_DYING,
};

/* A kit that was killed and is only not gone yet takes ADOPT, and whoever got the jail would lose
 * it at once. The kernel tells: SIGKILL is pending until the process runs for the last time, and a
 * moment later it is marked as one that exits. In between it runs, and one that waits does not. */
static enum kit_init look_at(const struct kjail *kit)
{
    enum { STATE = 3, FLAGS = 9, PENDING = 31 };
    enum { EXITING = 0x4, SIGNALED = 0x400 }; /* PF_* of the kernel's linux/sched.h */
    char path[40], text[1024];

    snprintf(path, sizeof path, "/proc/%d/stat", (int)kit->pid);
    if (fd_read_file(AT_FDCWD, path, text, sizeof text) <= 0)
        return KIT_DYING;

    char state = *stat_field(text, STATE);
    unsigned long flags = strtoul(stat_field(text, FLAGS), NULL, 10);
    unsigned long pending = strtoul(stat_field(text, PENDING), NULL, 10);
    if (state == 'Z' || state == 'X' || flags & (EXITING | SIGNALED) ||
        pending & 1ul << (SIGKILL - 1))
        return KIT_DYING;
    return state == 'S' ? KIT_WAITS : KIT_RUNS;
}

/* The jail becomes what the kit was; the kit's record goes. */
static void take_over(struct keeper *k, struct kjail *j, struct kjail *kit)
{
    pid_t pid = kit->pid;

    jail_dequeue(k, j);
    memcpy(j->name, kit->name, sizeof j->name);
    j->slot = kit->slot;
    j->rung = kit->rung;
    j->on_image = kit->on_image;
    j->lock = fd_take(&kit->lock);
    j->devpts = fd_take(&kit->devpts);
    j->mntns = fd_take(&kit->mntns);
    j->state = JAIL_RUNNING;
    fd_done(&j->init_end);
    buf_done(&j->payload);

    kit->slot = RANGE_NONE;
    jail_forget(k, kit);
    jail_set_pid(k, j, pid);
}

int kit_adopt(struct keeper *k, struct kjail *j, const struct spec *s)
{
    struct wire_head head = {.type = WIRE_ADOPT, .id = j->id};

    if (!k->config->kits)
        return -1; /* a private keeper finds its cgroups while the builder works, not before */

    note_image(k, s);
    k->recent[k->recent_next++ % KITS_RECENT] = (unsigned char)kind_of(k, s);
    struct timespec now = s->image[0] ? names_at(k) : (struct timespec){0};
    for (struct kjail *kit = k->kits, *next; kit && j->netns < 0; kit = next) {
        next = kit->kit_next;
        enum kit_init init = fits(k, kit, s) ? look_at(kit) : KIT_RUNS;
        if (init == KIT_RUNS)
            continue; /* it is for somebody later */

        bool is_stale = kit->on_image && (!is_as_before(kit, now) || !hold_image(kit));
        if (is_stale || init == KIT_DYING || set_limits(k, kit, &s->limits) < 0 ||
            wire_send(kit->adopt, &head, NULL, &j->init_end, 1, 0) < 0) {
            jail_doom(k, kit);
            continue;
        }

        take_over(k, j, kit);
        struct client *c = client_find(k, j->client);
        auto_fd dir = cgroup_jail_dir(keeper_cgroups(k), j->name);
        if (c)
            jail_send_created(k, c, j, dir);
        return 0;
    }

    return -1;
}
