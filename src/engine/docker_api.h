/* docker_api: what is said to docker's API, and what its answers mean. Pure: no calls are made
 * here.
 *
 * The engine is believed as far as JSON goes: what is read from it is bounded, and text that
 * becomes a name or a path is checked. */
#pragma once

#include "base/buf.h"
#include "wire/image_ref.h"
#include "wire/msg.h"
#include "wire/spec.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

/* Where in a container the door's directory is. */
#define DOOR_PLACE  "/run/paddock"
#define LABEL_OWNER "paddock.owner"
#define LABEL_BOX   "paddock.box"
#define LABEL_STORE "paddock.store"
#define LABEL_ROOT  "paddock.root"

/* What is put into a container on another machine, which sees no door: paddock-box and the key of
 * its link (docs/link.md). */
#define FAR_PLACE ".paddock"
#define FAR_UID   60001u /* of the far end of the link, and of who joins it */
struct docker_far {
    int program; /* a file: paddock-box */
    uint8_t key[32];
    char box[33]; /* its id, for the link */
    uint32_t lease;
    bool dev;
};
/* Appends the archive of it: to be unpacked at the container's root. */
void docker_far_archive(struct buf *out, const struct docker_far *f, const void *program,
                        size_t len);

/* A container to be made. The broker's template and nothing else: the keeper says which image and
 * which limits, never mounts, devices or capabilities. */
struct docker_plan {
    const char *image;                      /* as the engine knows it */
    const char *door;                       /* directory on the host; or NULL */
    const struct docker_far *far;           /* instead of a door; or NULL */
    const char *owner, *box, *store, *root; /* labels; root "" for none */
    const char *runtime;                    /* "" for the engine's own choice */
    bool dev;                               /* the profile: commands may be root */
    bool ipv6; /* the containers' kernel is known to have it: docker_create's */
    struct limits limits;
};
void docker_create_body(struct buf *out, const struct docker_plan *p);
/* What containers and images of this server's are labelled with, so that those of others on the
 * same engine are left alone. */
void docker_store_name(const char *state_dir, char ret[17]);
/* Whether a broker can give what a spec asks for; else the error names what it cannot. */
int docker_check_spec(const char *provider, const struct spec *s, struct pd_err *e);
int docker_fail_without_image(const char *provider, struct pd_err *e);

/* A container, as inspect tells of it. */
struct docker_container {
    char id[65];
    int pid; /* 0 when it does not run */
    bool running, paused, oom_killed;
    int exit_code;
    char status[16];
    char error[160];
    char image[80];            /* its id; "" where it was only listed */
    char from[IMAGE_TEXT_MAX]; /* the image by the name that it was made with; likewise */
    char volume[160]; /* where one of its volumes is mounted; "": it has none, or was only listed */
    char owner[64], box[64], store[64], root[64]; /* labels, "" without */
};
int docker_read_container(const void *json, size_t len, struct docker_container *ret,
                          struct pd_err *e);
/* The id of an image, as inspect tells of it. */
int docker_read_image_id(const void *json, size_t len, char *ret, size_t size, struct pd_err *e);
/* The id of an exec that was made: it becomes a part of a path. */
int docker_read_exec_id(const void *json, size_t len, char ret[65], struct pd_err *e);
/* The layers of an image, as inspect tells of it; -1 when it does not. */
int docker_read_layers(const void *json, size_t len, struct pd_err *e);
/* The text in the frames of a container's log, on one line. */
void docker_read_log(const void *log, size_t len, char *out, size_t size);
/* Why a container does not run, in words. */
void docker_say_end(const struct docker_container *c, char *out, size_t size);

/* A list of containers: calls `each` with every one's id and labels. */
typedef int docker_each(void *context, const struct docker_container *c, struct pd_err *e);
int docker_read_list(const void *json, size_t len, docker_each *each, void *context,
                     struct pd_err *e);

/* Reads the answer of /version; an API that is too old for us is PD_UNSUPPORTED. `ret` is "1.41".
 */
int docker_read_version(const void *json, size_t len, char ret[16], struct pd_err *e);

struct docker_info {
    char version[40], driver[24], cgroup_driver[24];
    int cgroup_version;
    bool seccomp, userns, rootless, apparmor, selinux;
    bool memory_limit, pids_limit, cpu_limit;
    bool has_runtime; /* the one asked for */
};
int docker_read_info(const void *json, size_t len, const char *runtime, struct docker_info *ret,
                     struct pd_err *e);
/* Takes from `i` the limits for which podman's own info (/libpod/info) has no cgroup controller:
 * what it says in docker's words is of the machine, not of the user that it runs as. */
int docker_read_controllers(const void *json, size_t len, struct docker_info *i, struct pd_err *e);
/* Whether the engine holds the limits of a box; PD_UNSUPPORTED names those that it would leave away
 * silently, and the remedy. */
int docker_check_limits(const char *provider, const struct docker_info *i, struct pd_err *e);

/* Lines of a pull, as they come: a line may be cut anywhere between two calls. The first error in
 * them is the pull's. Engines take about 125 layers; more than DOCKER_LAYERS_MAX are not counted.
 */
#define DOCKER_LAYERS_MAX 128u
struct docker_layer {
    char id[16];
    uint64_t bytes, total; /* that have come; 0 until it is told */
    bool done;
};
struct docker_pull {
    struct buf line;
    struct docker_layer layers[DOCKER_LAYERS_MAX];
    unsigned count;
    char digest[72]; /* of the manifest, "" until it is told */
    bool failed;
    char error[200];
};
#define DOCKER_PULL_INIT ((struct docker_pull){.line = BUF_INIT(64 << 10)})
void docker_pull_done(struct docker_pull *p);
/* For http_request.take. -1 with PD_PROTOCOL when a line is no JSON or too long. */
int docker_pull_take(void *pull, const void *data, size_t len, struct pd_err *e);

/* The sum of its layers. */
struct msg_progress docker_pull_progress(const struct docker_pull *p);

/* Fills *e from an answer with an error status: `what` was tried. Always -1. */
int docker_fail(int status, const void *body, size_t len, const char *what, struct pd_err *e);
/* The same for a text that came without a status, as in the lines of a pull. */
int docker_fail_text(int status, const char *text, const char *what, struct pd_err *e);

/* The credentials for a registry from a file as `docker login` writes it, as the value of
 * X-Registry-Auth in `out`, which stays empty when there are none for it. PD_INVALID: the file is
 * none of that form. */
int docker_read_auth(const void *json, size_t len, const char *registry, struct buf *out,
                     struct pd_err *e);
