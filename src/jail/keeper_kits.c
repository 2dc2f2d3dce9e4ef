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
 * creations wanted. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "jail/root.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/socket.h>

/* Rootless, and where limits are init's business, there are only plain ones. */
static int can_complete(struct keeper *k)
{
    return !k->rootless && k->kind->is_jail && keeper_cgroups(k)->layout != CGROUP_NONE;
}

/* Which kit a spec wants: a complete one of its profile, or a plain one. */
static unsigned kind_of(struct keeper *k, const struct spec *s)
{
    int usual = !s->root_dir[0] && !s->root_name[0] && !s->image[0] && !s->bind_count &&
                s->network == NETWORK_NONE;
    return usual && can_complete(k) ? s->profile : KIT_PLAIN;
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

static unsigned count(const struct keeper *k, enum profile profile)
{
    unsigned n = 0;
    for (const struct kjail *j = k->kits; j; j = j->kit_next)
        n += j->profile == profile;
    return n;
}

/* The profile of which there are too few complete kits, or PROFILE_COUNT. */
static enum profile lacking_profile(struct keeper *k)
{
    unsigned p = 0;
    while (p < PROFILE_COUNT &&
           count(k, (enum profile)p) >= share(k, p, k->config->builders * k->config->kits))
        p++;
    return (enum profile)p;
}

static int lacks_plain(struct keeper *k, const struct worker *w)
{
    return w->kit_count < share(k, KIT_PLAIN, k->config->kits);
}

int kits_lacking(struct keeper *k, const struct worker *w)
{
    if (!w->builds || w->prepare_failed || !k->config->kits)
        return 0;
    return lacks_plain(k, w) || lacking_profile(k) != PROFILE_COUNT;
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
        if (j->state == JAIL_KIT && !share(k, j->profile, 1))
            jail_doom(k, j);
    }
}

static void build_kit(struct keeper *k, struct worker *w, enum profile profile)
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
    m.spec.profile = profile;
    msg_build_encode(&out, &m);
    if (worker_send(w, WIRE_BUILD, j->id, &out, &theirs, 1) < 0) {
        jail_forget(k, j);
        return;
    }

    j->state = JAIL_BUILDING;
    j->profile = profile;
    j->adopt = fd_take(&ours);
    j->kit_next = k->kits;
    k->kits = j;
}

void kits_refill(struct keeper *k, struct worker *w)
{
    drop_unwanted(k);

    enum profile lacking = lacking_profile(k);
    if (lacking != PROFILE_COUNT && deadline_passed(k->kits_at) && jail_files_suffice(k))
        build_kit(k, w, lacking);
    else if (lacks_plain(k, w))
        worker_prepare(k, w);
}

static bool fits(struct keeper *k, const struct kjail *j, const struct spec *s)
{
    return j->state == JAIL_KIT && j->profile == kind_of(k, s) && j->rung >= s->min_rung;
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

    k->recent[k->recent_next++ % KITS_RECENT] = (unsigned char)kind_of(k, s);
    for (struct kjail *kit = k->kits, *next; kit && j->netns < 0; kit = next) {
        next = kit->kit_next;
        enum kit_init init = fits(k, kit, s) ? look_at(kit) : KIT_RUNS;
        if (init == KIT_RUNS)
            continue; /* it is for somebody later */

        if (init == KIT_DYING || set_limits(k, kit, &s->limits) < 0 ||
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
