/* The keeper's state: jails by id and by pid, stashed descriptors, the descriptors that it holds
 * back; and how it begins and ends.
 *
 * Jails are in hash tables, by id and by pid. Those that are dying, or dead and not swept yet, are
 * also on the list `watched`, so that a look at deadlines does not go through all of them. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/secret_env.h"
#include "jail/init_image.h"
#include "jail/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#define PLACE_PATIENCE (2 * NS_PER_S)

static unsigned bucket_of(struct wire_id id)
{
    uint32_t v;

    memcpy(&v, id.bytes, sizeof v);
    return v % BUCKETS;
}

static unsigned bucket_of_key(const char *key)
{
    uint32_t h = 2166136261u;

    for (; *key; key++)
        h = (h ^ (uint8_t)*key) * 16777619u;
    return h % BUCKETS;
}

int keeper_watch(struct keeper *k, int fd, struct source *s)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = s};
    return epoll_ctl(k->epoll, EPOLL_CTL_ADD, fd, &ev);
}

/* ---- jails ---- */

struct kjail *jail_new(struct keeper *k, struct wire_id id)
{
    struct kjail *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;

    j->id = id;
    j->slot = RANGE_NONE;
    j->gate[0] = j->gate[1] = -1;
    j->control = j->init_end = j->netns = j->devpts = j->lock = j->mntns = j->adopt = j->pidfd = -1;
    j->group = -1;
    j->payload = BUF_INIT(WIRE_PAYLOAD_MAX);

    unsigned b = bucket_of(id);
    j->next = k->jails[b];
    k->jails[b] = j;
    k->jail_count++;

    return j;
}

struct kjail *jail_add(struct keeper *k, struct frame *f, const struct client *c,
                       const char *root_name, struct pd_err *e)
{
    struct kjail *j = jail_new(k, f->head.id);
    if (!j || buf_put(&j->payload, f->payload.data, f->payload.len) < 0 ||
        (root_name[0] && !(j->root_name = strdup(root_name)))) {
        if (j)
            jail_forget(k, j);
        pd_fail(e, PD_CAPACITY, "no memory for another jail");
        return NULL;
    }

    j->client = c->serial;
    j->keep = f->head.flags & CREATE_KEEP;
    j->tell = f->head.flags & CREATE_TELL;
    j->init_end = frame_take_fd(f, 0);

    /* Only a jail that another owner may adopt needs a copy. A jail's init could send a socket that
     * takes long to close: so no copy is ever closed here, the sweeper does it. */
    if (j->keep)
        j->control = frame_take_fd(f, 1);
    j->netns = frame_take_fd(f, 2);

    if (k->queue_last)
        k->queue_last->queue_next = j;
    else
        k->queue_first = j;
    k->queue_last = j;
    k->queued++;

    return j;
}

void jail_dequeue(struct keeper *k, struct kjail *j)
{
    struct kjail *before = NULL;

    for (struct kjail *at = k->queue_first; at; before = at, at = at->queue_next) {
        if (at != j)
            continue;
        if (before)
            before->queue_next = j->queue_next;
        else
            k->queue_first = j->queue_next;
        if (k->queue_last == j)
            k->queue_last = before;
        j->queue_next = NULL;
        k->queued--;
        return;
    }
}

struct kjail *jail_find(struct keeper *k, struct wire_id id)
{
    for (struct kjail *j = k->jails[bucket_of(id)]; j; j = j->next)
        if (wire_id_equal(j->id, id))
            return j;
    return NULL;
}

struct kjail *jail_by_pid(struct keeper *k, pid_t pid)
{
    for (struct kjail *j = k->pids[(unsigned)pid % BUCKETS]; j; j = j->pid_next)
        if (j->pid == pid)
            return j;
    return NULL;
}

void jail_set_pid(struct keeper *k, struct kjail *j, pid_t pid)
{
    if (j->pid)
        for (struct kjail **at = &k->pids[(unsigned)j->pid % BUCKETS]; *at; at = &(*at)->pid_next)
            if (*at == j) {
                *at = j->pid_next;
                break;
            }

    j->pid = pid;
    if (pid) {
        j->pid_next = k->pids[(unsigned)pid % BUCKETS];
        k->pids[(unsigned)pid % BUCKETS] = j;
    }
}

int jail_watch_init(struct keeper *k, struct kjail *j)
{
    if (!k->kind->is_foreign)
        return 0;

    /* One that may not be signalled is one all the same. */
    if (syscall(SYS_pidfd_send_signal, j->pidfd, 0, NULL, 0) < 0 && errno != EPERM)
        return -errno;
    j->source.kind = SOURCE_INIT;
    return keeper_watch(k, j->pidfd, &j->source) < 0 ? -errno : 0;
}

void jail_signal_init(const struct keeper *k, const struct kjail *j, int number)
{
    if (k->kind->is_foreign)
        (void)syscall(SYS_pidfd_send_signal, j->pidfd, number, NULL, 0);
    else if (j->pid > 0)
        kill(j->pid, number);
}

void jail_watch(struct keeper *k, struct kjail *j)
{
    for (struct kjail *at = k->watched; at; at = at->watched_next)
        if (at == j)
            return;

    j->watched_next = k->watched;
    k->watched = j;
}

static void jail_unwatch(struct keeper *k, struct kjail *j)
{
    for (struct kjail **at = &k->watched; *at; at = &(*at)->watched_next)
        if (*at == j) {
            *at = j->watched_next;
            return;
        }
}

/* Closing it is not enough: the builder that has opened it may not have closed it yet. */
void jail_release_root(struct kjail *j)
{
    if (j->lock >= 0)
        (void)flock(j->lock, LOCK_UN);
    fd_done(&j->lock);
}

/* All but the mount namespace and the control socket, which go to the sweeper. */
static void close_all(const struct keeper *k, struct kjail *j)
{
    /* The broker may have the pidfd open as well: closing it here would not end the watching. */
    if (j->pidfd >= 0)
        epoll_ctl(k->epoll, EPOLL_CTL_DEL, j->pidfd, NULL);
    fd_done(&j->init_end);
    fd_done(&j->netns);
    fd_done(&j->devpts);
    fd_done(&j->gate[0]);
    fd_done(&j->gate[1]);
    fd_done(&j->group);
    jail_release_root(j);
    fd_done(&j->adopt);
    fd_done(&j->pidfd);
    buf_done(&j->payload);
}

/* It has no first command any more for which kits would wait. */
static void end_pause(struct keeper *k, const struct kjail *j)
{
    if (wire_id_equal(j->id, k->newest))
        k->first_command_at = 0;
}

void jail_set_dead(struct keeper *k, struct kjail *j)
{
    if (j->state == JAIL_UNDEAD)
        k->undead_count--;

    end_pause(k, j);
    kit_leave(k, j);
    j->state = JAIL_DEAD;
    j->sweep_after = 0;
    jail_set_pid(k, j, 0);
    close_all(k, j);
    jail_watch(k, j);
}

int jails_living(const struct keeper *k)
{
    for (unsigned b = 0; b < BUCKETS; b++)
        for (const struct kjail *j = k->jails[b]; j; j = j->next)
            if (j->state != JAIL_DEAD && j->state != JAIL_UNDEAD)
                return 1;
    return 0;
}

int jail_is_being_swept(const struct keeper *k, const struct kjail *j)
{
    for (unsigned i = 0; i < k->worker_count; i++)
        if (k->workers[i].busy == WIRE_SWEEP && wire_id_equal(k->workers[i].request, j->id))
            return 1;
    return 0;
}

void jail_forget(struct keeper *k, struct kjail *j)
{
    jail_dequeue(k, j);
    jail_unwatch(k, j);
    kit_leave(k, j);
    end_pause(k, j);
    safe_drop_jail(k, j);
    jail_set_pid(k, j, 0);

    for (struct kjail **at = &k->jails[bucket_of(j->id)]; *at; at = &(*at)->next)
        if (*at == j) {
            *at = j->next;
            break;
        }

    if (k->has_ranges)
        range_release(&k->ranges, j->slot);
    close_all(k, j);
    fd_done(&j->mntns);
    fd_done(&j->control);
    k->jail_count--;
    free(j->root_name);
    free(j);
}

void keeper_abandon(struct keeper *k, const char *name, uint32_t slot)
{
    struct kjail *j = jail_new(k, wire_id_new());
    if (!j)
        return; /* the last worker to end removes the directories */

    j->slot = slot;
    memcpy(j->name, name, sizeof j->name);
    jail_set_dead(k, j);
    j->wants_strike = 1; /* half a jail may be living there */
}

/* ---- the fd store ---- */

struct stash *stash_find(struct keeper *k, const char *key)
{
    for (struct stash *s = k->stashes[bucket_of_key(key)]; s; s = s->next)
        if (!strcmp(s->key, key))
            return s;
    return NULL;
}

int stash_add(struct keeper *k, const char *key, struct frame *f)
{
    struct stash *s = k->stash_count < STASH_MAX ? calloc(1, sizeof *s) : NULL;
    if (!s)
        return -1;

    snprintf(s->key, sizeof s->key, "%s", key);
    s->fd_count = f->fd_count;
    for (unsigned i = 0; i < s->fd_count; i++)
        s->fds[i] = frame_take_fd(f, i);

    unsigned b = bucket_of_key(key);
    s->next = k->stashes[b];
    k->stashes[b] = s;
    k->stash_count++;

    return 0;
}

void stash_remove(struct keeper *k, struct stash *s)
{
    for (struct stash **at = &k->stashes[bucket_of_key(s->key)]; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }

    for (unsigned i = 0; i < s->fd_count; i++)
        fd_done(&s->fds[i]);
    k->stash_count--;
    free(s);
}

/* ---- descriptors held back ---- */

void files_lend(struct keeper *k)
{
    for (unsigned i = 0; i < HELD_FILES; i++)
        fd_done(&k->held[i]);
}

void files_hold(struct keeper *k)
{
    for (unsigned i = 0; i < HELD_FILES; i++) {
        if (k->held[i] >= 0)
            continue;
        k->held[i] = fcntl(k->null, F_DUPFD_CLOEXEC, 3);
        if (k->held[i] < 0)
            return; /* again when something was closed */
    }
}

/* ---- the keeper itself ---- */

const struct cgroup_host *keeper_cgroups(struct keeper *k)
{
    if (!k->cgroups_known) {
        struct cgroup_mounts m;
        cgroup_find(&m);
        if (k->kind->has_own_groups)
            m.layout = CGROUP_NONE;
        (void)cgroup_host_open(&k->cgroups, &m, k->instance, NULL);
        sweep_hold_instance(&k->cgroups);
        k->cgroups_known = 1;
    }

    return &k->cgroups;
}

int jail_group_open(struct keeper *k, const struct kjail *j)
{
    if (!k->kind->has_own_groups)
        return cgroup_jail_dir(keeper_cgroups(k), j->name);
    if (j->group < 0)
        return -ENOENT;
    int fd = fcntl(j->group, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? -errno : fd;
}

void keeper_next_name(struct keeper *k, char ret[MSG_NAME_MAX + 1])
{
    snprintf(ret, MSG_NAME_MAX + 1, "j%llu", (unsigned long long)++k->next_name);
}

void keeper_note_death(struct keeper *k, pid_t pid)
{
    unsigned i = k->death_next++ % DEATHS_KEPT;
    k->deaths[i].pid = pid;
    k->deaths[i].at = clock_now();
}

int keeper_early_death(struct keeper *k, pid_t pid, uint64_t since)
{
    for (unsigned i = 0; i < DEATHS_KEPT; i++)
        if (k->deaths[i].pid == pid && k->deaths[i].at >= since) {
            k->deaths[i].pid = 0;
            return 1;
        }
    return 0;
}

/* Keepers that start at the same moment take a socket's place one after the other: otherwise one
 * could unlink what another has just bound. The lock is on the directory, so that no file stays. In
 * one that everybody can open it may be held by anybody: it is not waited for long. */
static int lock_place(const char *path)
{
    char dir[sizeof((struct sockaddr_un *)NULL)->sun_path + 2];
    const char *slash = strrchr(path, '/');
    int len = slash ? (int)(slash - path) : 0;
    snprintf(dir, sizeof dir, "%.*s%s", len, path, slash ? "/" : ".");

    auto_fd fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    deadline d = deadline_in(PLACE_PATIENCE);
    while (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK &&
           !deadline_passed(d))
        usleep(1000);
    return fd_take(&fd);
}

/* The socket is its owner's before it has its name: a daemon that waits for this keeper takes a
 * refused connection for one that is not there yet, and a missing permission for good. And nobody
 * else is let in who came when its mode was not set yet: the kernel looks at the mode first, and
 * whether somebody listens after that. */
static int listen_at(const char *path, uid_t owner, struct pd_err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX}, unnamed;
    size_t len = strlen(path);

    if (!len || len >= sizeof a.sun_path)
        return pd_fail(e, PD_INVALID, "--socket: '%.100s' is longer than %zu bytes", path,
                       sizeof a.sun_path - 1);

    memcpy(a.sun_path, path, len + 1);
    unnamed = a;
    unnamed.sun_path[len - 1] = path[len - 1] == '~' ? '+' : '~';
    auto_fd fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return pd_fail_sys(e, "make a socket");
    auto_fd place __attribute__((unused)) = lock_place(path);

    /* A socket that nobody answers on is a leftover; one that answers is another keeper. */
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return pd_fail(e, PD_CONFLICT, "another keeper listens on %s", path);

    bool nobody = errno == ECONNREFUSED;
    struct stat st;
    if (lstat(path, &st) == 0 && (!nobody || !S_ISSOCK(st.st_mode))) {
        errno = EADDRINUSE;
        return pd_fail_sys(e, "make a socket at %s", path);
    }
    if (lstat(unnamed.sun_path, &st) == 0 && S_ISSOCK(st.st_mode))
        (void)unlink(unnamed.sun_path);

    mode_t old = umask(0177);
    int bound = bind(fd, (struct sockaddr *)&unnamed, sizeof unnamed);
    umask(old);
    if (bound < 0)
        return pd_fail_sys(e, "make a socket at %s", path);

    if (owner && lchown(unnamed.sun_path, owner, (gid_t)-1) < 0)
        return pd_fail_sys(e, "hand %s to uid %u", path, (unsigned)owner);
    if (listen(fd, 128) < 0)
        return pd_fail_sys(e, "listen on %s", path);
    if (rename(unnamed.sun_path, path) < 0)
        return pd_fail_sys(e, "give the socket its name %s", path);

    return fd_take(&fd);
}

/* Host ids are the machine's: keepers with run directories of their own share one table of them. */
static int open_ranges(struct keeper *k, struct pd_err *e)
{
    const struct keeper_config *c = k->config;
    struct stat st;
    (void)mkdir(RANGES_DIR, 0711);

    int usable = lstat(RANGES_DIR, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == 0;
    if (usable && ranges_open(&k->ranges, RANGES_DIR, c->separate_sweeper, e) == 0)
        return 0;
    return ranges_open(&k->ranges, c->run_dir, c->separate_sweeper, e);
}

static int set_up(struct keeper *k, struct pd_err *e)
{
    const struct keeper_config *c = k->config;

    k->epoll = epoll_create1(EPOLL_CLOEXEC);
    k->null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (k->epoll < 0 || k->null < 0)
        return pd_fail_sys(e, "set up the keeper");

    if (!c->inside && (k->secrets = secret_env_seal()) < 0 && k->secrets != -ENODATA) {
        errno = -k->secrets;
        return pd_fail_sys(e, "put credentials of the environment away");
    }
    if (k->kind->program && (k->init_file = init_image_open_file(e)) < 0)
        return -1;
    if (k->kind->may_be_far && (k->box_file = box_image_open_file(e)) < 0)
        return -1;

    /* Before anybody is started: the signal of a worker that dies at once would be lost. */
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    if (!c->inside) {
        sigaddset(&mask, SIGTERM);
        sigaddset(&mask, SIGINT);
    }
    sigprocmask(SIG_BLOCK, &mask, NULL);

    safe_find(k);

    /* Its builder is to hold the range with it. */
    if (c->inside && k->has_ranges && open_ranges(k, e) < 0)
        return -1;

    /* First of all, because they take longest to be ready. */
    for (unsigned i = 0; i < c->builders; i++)
        k->workers[k->worker_count++] =
            (struct worker){.sock = -1, .builds = 1, .sweeps = !c->separate_sweeper};
    if (c->separate_sweeper)
        k->workers[k->worker_count++] = (struct worker){.sock = -1, .sweeps = 1};

    for (unsigned i = 0; i < k->worker_count; i++) {
        int r = worker_start(k, &k->workers[i]);
        if (r < 0) {
            errno = -r;
            return pd_fail_sys(e, "start a builder");
        }
    }

    files_hold(k);
    k->signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (k->signals < 0 || keeper_watch(k, k->signals, &k->signal_source) < 0)
        return pd_fail_sys(e, "set up the keeper");

    if (c->socket_path) {
        k->listener = listen_at(c->socket_path, k->rootless ? 0 : c->owner, e);
        if (k->listener < 0 || keeper_watch(k, k->listener, &k->listener_source) < 0)
            return -1;
    }

    if (c->client >= 0 && !client_add(k, c->client))
        return pd_fail(e, PD_CAPACITY, "no memory for the client");

    return k->has_ranges && k->ranges.fd < 0 ? open_ranges(k, e) : 0;
}

struct keeper *keeper_new(const struct keeper_config *c, struct pd_err *e)
{
    struct keeper *k = calloc(1, sizeof *k);
    if (!k) {
        pd_fail(e, PD_CAPACITY, "no memory for a keeper");
        return NULL;
    }

    k->config = c;
    k->reap_at = DEADLINE_NONE;
    k->kind = c->kind ? c->kind : keeper_kind_at(0);
    k->rootless = geteuid() != 0;
    k->has_ranges = !k->rootless && k->kind->has_range;
    k->init_file = k->box_file = k->secrets = -1;
    k->epoll = k->signals = k->listener = k->null = k->ranges.fd = k->safe = k->safe_process = -1;
    for (unsigned i = 0; i < HELD_FILES; i++)
        k->held[i] = -1;

    if (getrlimit(RLIMIT_NOFILE, &k->files) == 0 && c->socket_path)
        (void)fd_limit_raise(c->files_max);
    k->signal_source.kind = SOURCE_SIGNAL;
    k->listener_source.kind = SOURCE_LISTENER;
    k->safe_source.kind = SOURCE_SAFE;
    k->in = FRAME_INIT;
    (void)frame_reserve(&k->in); /* without it a frame takes two calls */

    uint64_t r;
    random_bytes(&r, sizeof r);
    snprintf(k->instance, sizeof k->instance, "%016llx", (unsigned long long)r);

    k->builder_config = (struct builder_config){.instance = k->instance,
                                                .state_dir = c->state_dir,
                                                .rootless = k->rootless,
                                                .owner = k->rootless ? 0 : c->owner};
    k->sweeper_config = k->builder_config;
    k->sweeper_config.sweeper = 1;
    k->copier_config = k->builder_config;
    k->copier_config.copier = 1;
    kits_begin(k);

    if (set_up(k, e) == 0)
        return k;

    keeper_free(k);
    return NULL;
}

void keeper_free(struct keeper *k)
{
    safe_end(k); /* first: what is freed below, the next keeper may find */
    for (unsigned i = 0; i < k->worker_count; i++)
        fd_done(&k->workers[i].sock);

    for (unsigned b = 0; b < BUCKETS; b++) {
        while (k->jails[b])
            jail_forget(k, k->jails[b]);
        while (k->stashes[b])
            stash_remove(k, k->stashes[b]);
    }

    for (struct chore *c; (c = k->chores);) {
        k->chores = c->next;
        chore_free(c);
    }

    for (struct client *c = k->clients; c; c = c->next)
        client_close(k, c);
    client_collect(k);
    files_lend(k);

    if (k->listener >= 0)
        unlink(k->config->socket_path);
    fd_done(&k->listener);
    fd_done(&k->signals);
    fd_done(&k->epoll);
    fd_done(&k->null);
    fd_done(&k->init_file);
    fd_done(&k->box_file);
    fd_done(&k->secrets);
    ranges_done(&k->ranges);
    if (k->cgroups_known)
        cgroup_host_done(&k->cgroups);
    frame_done(&k->in);
    free(k);
}

static const char *own_dir(const char *variable, const char *for_root, const char *base,
                           const char *fallback, char *out, size_t size)
{
    const char *set = getenv(variable);
    if (set && set[0] == '/')
        return set;
    if (geteuid() == 0)
        return for_root;

    const char *dir = getenv(base);
    if (dir && dir[0] == '/')
        snprintf(out, size, "%s/%s", dir, fallback);
    else
        snprintf(out, size, "/tmp/paddock-%u/%s", geteuid(), fallback);

    return out;
}

int keeper_dirs(const char **ret_state, const char **ret_run, struct pd_err *e)
{
    static char state[4096], run[4096];

    *ret_state = own_dir("PADDOCK_STATE_DIR", "/var/lib/paddock", "HOME", ".local/share/paddock",
                         state, sizeof state);
    *ret_run =
        own_dir("PADDOCK_RUN_DIR", "/run/paddock", "XDG_RUNTIME_DIR", "paddock", run, sizeof run);

    char path[4096];
    snprintf(path, sizeof path, "%s", *ret_run);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return pd_fail_sys(e, "make the directory %s", path);
        *slash = '/';
    }

    struct stat st;
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return pd_fail_sys(e, "make the run directory %s", path);

    /* Somebody else's directory of that name in /tmp must not be trusted. */
    if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
        return pd_fail(e, PD_DENIED, "the run directory %s belongs to somebody else", path);

    return 0;
}
