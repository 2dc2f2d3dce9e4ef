/* The body of a request for a container: the template of the broker. Only limits, image, labels,
 * the runtime and the profile differ from one to the next. Init needs five capabilities to give
 * commands their user and to end them; it drops each of them for every command, and the engine's
 * no-new-privileges keeps a set-uid file of the image from bringing any back. Beside the engine's
 * own filter of system calls stands a jail's, which init loads: no engine has to take it. In `dev`
 * a command may be root, by sudo or when that is asked for, and has the seven of a jail's root
 * then. */
#include "engine/docker_api.h"

#include "base/banned.h"
#include "base/err.h"
#include "base/json.h"
#include "wire/start.h"

#include <stdio.h>
#include <string.h>

void docker_store_name(const char *state_dir, char ret[17])
{
    uint64_t h = 14695981039346656037u;

    for (; *state_dir; state_dir++)
        h = (h ^ (unsigned char)*state_dir) * 1099511628211u;
    snprintf(ret, 17, "%016llx", (unsigned long long)h);
}

#define HOST_NAME "sandbox" /* that of a jail */

static void put_list(struct json *j, const char *key, const char *const *texts, unsigned count)
{
    json_key(j, key);
    json_open(j, '[');
    for (unsigned i = 0; i < count; i++)
        json_cstr(j, texts[i]);
    json_close(j, ']');
}

/* Each of them, also where it is empty: what is not said here an image would say. */
static void put_labels(struct json *j, const struct docker_plan *p)
{
    json_key(j, "Labels");
    json_open(j, '{');
    json_member_cstr(j, LABEL_OWNER, p->owner);
    json_member_cstr(j, LABEL_BOX, p->box);
    json_member_cstr(j, LABEL_STORE, p->store);
    json_member_cstr(j, LABEL_ROOT, p->root);
    json_close(j, '}');
}

/* A mount and not a bind: where the source is missing a bind would make it. */
static void put_mount(struct json *j, const char *source, const char *target)
{
    json_open(j, '{');
    json_member_cstr(j, "Type", "bind");
    json_member_cstr(j, "Source", source);
    json_member_cstr(j, "Target", target);
    json_member_bool(j, "ReadOnly", 1);
    json_close(j, '}');
}

/* The door; in `dev` also init once more, under the name sudo. */
static void put_mounts(struct json *j, const struct docker_plan *p)
{
    char init[700];

    json_key(j, "Mounts");
    json_open(j, '[');
    if (p->door)
        put_mount(j, p->door, DOOR_PLACE);
    if (p->door && p->dev) {
        snprintf(init, sizeof init, "%s/init", p->door);
        put_mount(j, init, INIT_SHIM_DIR "/sudo");
    }
    json_close(j, ']');
}

static void put_ulimits(struct json *j)
{
    static const struct {
        const char *name;
        uint64_t soft, hard;
    } limits[] = {{"nofile", 1024, 16384}, {"core", 0, 0}, {"nproc", 32768, 32768}};

    json_key(j, "Ulimits");
    json_open(j, '[');
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        json_open(j, '{');
        json_member_cstr(j, "Name", limits[i].name);
        json_member_uint(j, "Soft", limits[i].soft);
        json_member_uint(j, "Hard", limits[i].hard);
        json_close(j, '}');
    }
    json_close(j, ']');
}

/* Of a container without a network: its loopback, and a name that leads there, as in a jail.
 * Without the setting an engine takes ::1 away; where the kernel has no IPv6 nothing would start
 * with it. */
static void put_network(struct json *j, const struct docker_plan *p)
{
    static const char *const own[] = {HOST_NAME ":127.0.0.1", HOST_NAME ":::1"};

    json_member_cstr(j, "NetworkMode", "none");
    put_list(j, "ExtraHosts", own, p->ipv6 ? 2 : 1);
    if (!p->ipv6)
        return;
    json_key(j, "Sysctls");
    json_open(j, '{');
    json_member_cstr(j, "net.ipv6.conf.all.disable_ipv6", "0");
    json_close(j, '}');
}

static void put_host_config(struct json *j, const struct docker_plan *p)
{
    static const char *const dropped[] = {"ALL"};
    static const char *const added[] = {"CHOWN",  "KILL",         "SETGID", "SETPCAP",
                                        "SETUID", "DAC_OVERRIDE", "FOWNER", "FSETID"};
    static const char *const security[] = {"no-new-privileges"};

    json_key(j, "HostConfig");
    json_open(j, '{');
    put_network(j, p);
    json_member_cstr(j, "IpcMode", "private");
    put_list(j, "CapDrop", dropped, 1);
    put_list(j, "CapAdd", added, p->dev ? 8 : 5);
    put_list(j, "SecurityOpt", security, 1);

    /* Swap counts as memory, as in a jail. */
    json_member_uint(j, "Memory", p->limits.memory);
    json_member_uint(j, "MemorySwap", p->limits.memory);
    json_member_uint(j, "NanoCpus", p->limits.cpu_milli * 1000000);
    json_member_uint(j, "PidsLimit", p->limits.pids);

    /* Podman's own default may be more than the machine allows, and then nothing starts. */
    put_ulimits(j);
    put_mounts(j, p);
    if (p->runtime[0])
        json_member_cstr(j, "Runtime", p->runtime);

    /* Commands' output is the daemon's business. Init says only why it cannot begin. */
    json_key(j, "LogConfig");
    json_open(j, '{');
    json_member_cstr(j, "Type", "json-file");
    json_key(j, "Config");
    json_open(j, '{');
    json_member_cstr(j, "max-size", "64k");
    json_close(j, '}');
    json_close(j, '}');
    json_key(j, "RestartPolicy");
    json_open(j, '{');
    json_member_cstr(j, "Name", "no");
    json_close(j, '}');
    json_close(j, '}');
}

/* What the container begins with: init at its door, or paddock-box that was put in. */
static void put_entry(struct json *j, const struct docker_plan *p)
{
    static const char *const near[] = {DOOR_PLACE "/init", INIT_ARG_DOOR,
                                       ("filter=" DOOR_PLACE "/filter"), ("profile=" INIT_ARG_DEV)};
    char box[48], lease[32];

    if (!p->far) {
        put_list(j, "Entrypoint", near, p->dev ? 4 : 3);
        return;
    }
    snprintf(box, sizeof box, "box=%s", p->far->box);
    snprintf(lease, sizeof lease, "lease=%u", (unsigned)p->far->lease);
    const char *far[] = {
        "/" FAR_PLACE "/box", "run", "key=/" FAR_PLACE "/key", box, lease, near[3]};
    put_list(j, "Entrypoint", far, p->dev ? 6 : 5);
}

void docker_create_body(struct buf *out, const struct docker_plan *p)
{
    static const char *const none[] = {"NONE"};
    struct json j = JSON_INIT(out);

    json_open(&j, '{');
    json_member_cstr(&j, "Image", p->image);
    json_member_cstr(&j, "Hostname", HOST_NAME);
    json_member_cstr(&j, "User", "0:0");
    json_member_cstr(&j, "WorkingDir", "/");
    put_entry(&j, p);
    put_list(&j, "Cmd", NULL, 0);
    json_member_cstr(&j, "StopSignal", "SIGKILL");

    /* A health check of the image would be a command that nobody asked for. */
    json_key(&j, "Healthcheck");
    json_open(&j, '{');
    put_list(&j, "Test", none, 1);
    json_close(&j, '}');

    put_labels(&j, p);
    put_host_config(&j, p);
    json_close(&j, '}');
}

int docker_fail_without_image(const char *provider, struct pd_err *e)
{
    return pd_fail(e, PD_INVALID,
                   "provider %s needs an image, such as \"image\": \"debian:12\", or a setting "
                   "default_image of the server",
                   provider);
}

int docker_check_spec(const char *provider, const struct spec *s, struct pd_err *e)
{
    if (!s->image[0] && !s->root_name[0])
        return docker_fail_without_image(provider, e);
    if (s->min_rung > RUNG_BASIC)
        return pd_fail(e, PD_ISOLATION,
                       "provider %s gives '%s', '%s' was asked for: use provider jail", provider,
                       rung_name(RUNG_BASIC), rung_name(s->min_rung));
    if (s->profile != PROFILE_STRICT && s->profile != PROFILE_DEV)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s has no profile '%s': use strict or dev, or provider jail",
                       provider, profile_name(s->profile));
    if (s->network != NETWORK_NONE)
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s has no network '%s': use none, or provider jail", provider,
                       network_name(s->network));
    if (s->bind_count || s->root_dir[0])
        return pd_fail(e, PD_UNSUPPORTED,
                       "provider %s shows no files of the host ('%.80s'): put them into the image, "
                       "or upload them",
                       provider, s->root_dir[0] ? s->root_dir : s->binds[0].source);
    return 0;
}
