/* The store of images, for clients: each request becomes a process `paddock image ... --json`,
 * which does what the command line does and writes to the client's own descriptor. The keeper
 * starts it, counts it, and has nothing more to do with it: strangers' bytes go past it, and so do
 * lists.
 *
 * What brings images in may take an hour: some places are never given to it, so that the store can
 * be listed meanwhile. The client stops a request by closing its end. All end with the keeper; what
 * a pull has fetched by then is kept for the next one. */
#include "jail/keeper_state.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/fd.h"
#include "wire/image_record.h"
#include "wire/image_ref.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define WORDS 18

struct order {
    struct msg_images m;
    int out, file; /* file: -1 if there is none */
};

/* Where the registry of an image is instead; NULL: where its name says. */
static const char *find_registry(const struct keeper *k, const char *image)
{
    const struct keeper_config *c = k->config;
    struct image_ref ref;

    if (image_ref_parse(image, &ref, NULL) < 0)
        return NULL;
    size_t len = strlen(ref.registry);
    for (unsigned i = 0; i < c->registry_count; i++)
        if (!strncmp(c->registries[i], ref.registry, len) && c->registries[i][len] == '=')
            return c->registries[i] + len + 1;
    return NULL;
}

/* Somebody's own credentials come as a file; nothing of the operator's goes with them. */
static unsigned add_pull(const struct keeper *k, const struct order *o, const char **argv,
                         unsigned n)
{
    const struct msg_images *m = &o->m;
    const char *registry = find_registry(k, m->image);

    if (o->file >= 0 || k->config->registry_auth) {
        argv[n++] = "--auth";
        argv[n++] = o->file >= 0 ? "-" : k->config->registry_auth;
    }
    if (m->as[0]) {
        argv[n++] = "--name";
        argv[n++] = m->as;
    }
    if (m->missing)
        argv[n++] = "--missing";
    if (registry) {
        argv[n++] = "--registry";
        argv[n++] = registry;
    }
    return n;
}

static _Noreturn void become_command(struct keeper *k, const struct order *o, pid_t keeper)
{
    static const char *const verbs[IMAGES_VERB_COUNT] = {"pull",    "import", "ls",
                                                         "inspect", "rm",     "prune"};
    const char *argv[WORDS] = {"paddock", "image", verbs[o->m.verb], "--json"};
    char max[24];
    bool tells_end = o->m.verb == IMAGES_LIST || o->m.verb == IMAGES_INSPECT ||
                     o->m.verb == IMAGES_REMOVE || o->m.verb == IMAGES_PRUNE;
    unsigned n = 4;

    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != keeper)
        _exit(1);
    keeper_child_begin(k, "images");

    /* Copies first: each may have had the other's number. */
    int out = fcntl(o->out, F_DUPFD, 6), file = o->file < 0 ? -1 : fcntl(o->file, F_DUPFD, 6);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (dup2(file < 0 ? null : file, 0) < 0 || dup2(out, 1) < 0 || dup2(null, 2) < 0)
        _exit(1);
    syscall(SYS_close_range, 3, ~0u, 0);

    snprintf(max, sizeof max, "%" PRIu64, o->m.store_max);
    if (o->m.store_max) {
        argv[n++] = o->m.verb == IMAGES_PRUNE ? "--max" : "--store-max";
        argv[n++] = max;
    }
    if (tells_end) /* what brings images in ends with what came of it */
        argv[n++] = "--end";
    if (o->m.verb == IMAGES_PULL)
        n = add_pull(k, o, argv, n);
    if (o->m.verb == IMAGES_IMPORT && o->m.image[0]) {
        argv[n++] = "--name";
        argv[n++] = o->m.image;
    }
    if (o->m.verb == IMAGES_IMPORT)
        argv[n++] = "-";
    else if (o->m.image[0])
        argv[n++] = o->m.image;

    setenv("PADDOCK_STATE_DIR", k->config->state_dir, 1);
    setenv("PADDOCK_RUN_DIR", k->config->run_dir, 1);
    unsetenv("PADDOCK_KEEPER");
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    _exit(127);
}

/* They become words of a command line: nothing that could be an option or a path. */
static int check(const struct keeper *k, const struct msg_images *m, unsigned fds, struct pd_err *e)
{
    struct image_ref ref;
    bool wants_name =
        m->verb == IMAGES_PULL || m->verb == IMAGES_INSPECT || m->verb == IMAGES_REMOVE;

    if (!k->kind->is_jail || !k->config->socket_path)
        return pd_fail(e, PD_UNSUPPORTED, "provider %s has no store of images", k->kind->name);
    if (m->verb == IMAGES_PULL ? fds != 1 && fds != 2 : fds != (m->verb == IMAGES_IMPORT ? 2 : 1))
        return pd_fail(e, PD_PROTOCOL, "IMAGES with %u descriptors", fds);
    if (m->as[0] && (m->verb != IMAGES_PULL || image_ref_parse(m->as, &ref, e) < 0))
        return pd_fail(e, PD_PROTOCOL, "IMAGES gives an image a name that it cannot have");
    if (!m->image[0])
        return wants_name ? pd_fail(e, PD_INVALID, "an image needs a name") : 0;

    const char *hex = m->image + (strncmp(m->image, "sha256:", 7) ? 0 : 7);
    return image_is_hex(hex) ? 0 : image_ref_parse(m->image, &ref, e);
}

static int start(struct keeper *k, const struct order *o, struct pd_err *e)
{
    bool fetches = o->m.verb == IMAGES_PULL || o->m.verb == IMAGES_IMPORT;

    for (unsigned i = fetches ? IMAGES_QUICK : 0; i < IMAGES_AT_ONCE; i++) {
        if (k->image_pids[i])
            continue;
        pid_t keeper = getpid(), pid = fork();
        if (pid < 0)
            return pd_fail_sys(e, "start a process for images");
        if (pid == 0)
            become_command(k, o, keeper);
        k->image_pids[i] = pid;
        return 0;
    }
    return pd_fail(e, PD_CAPACITY, "%u requests on images are under way: try in a moment",
                   fetches ? IMAGES_AT_ONCE - IMAGES_QUICK : IMAGES_AT_ONCE);
}

void images_request(struct keeper *k, struct client *c, const struct frame *f)
{
    struct order o = {.file = f->fd_count > 1 ? f->fds[1] : -1};
    struct pd_err e;

    int failed =
        msg_images_decode(&f->payload, &o.m, &e) < 0 || check(k, &o.m, f->fd_count, &e) < 0;
    if (!failed) {
        o.out = f->fds[0];
        failed = start(k, &o, &e) < 0;
    }
    if (failed)
        client_send_error(k, c, f->head.id, &e);
    else
        client_send_done(k, c, f->head.id);
}

bool images_reaped(struct keeper *k, pid_t pid)
{
    for (unsigned i = 0; i < IMAGES_AT_ONCE; i++)
        if (k->image_pids[i] == pid) {
            k->image_pids[i] = 0;
            return true;
        }
    return false;
}
