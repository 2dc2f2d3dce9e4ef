/* spec: what a sandbox should be.
 *
 * Made by the client that wants a jail, sent to the keeper, read by the builder. The strings belong
 * to the caller (after decoding: to the frame). A spec is checked by spec_check before it is sent
 * and again by the keeper, which trusts nobody. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct pd_err;

/* strict: all five capability sets are empty for every uid.
 * dev: sandbox root has seven capabilities in its own user namespace, and a sudo.
 * restricted: strict, and nothing that the sandbox wrote can be executed; programs that delete,
 * move and fetch (docs/policy.md) are missing. */
enum profile { PROFILE_STRICT, PROFILE_DEV, PROFILE_RESTRICTED, PROFILE_COUNT };
/* gate: no way out but through a gate, by rules that the keeper does not know (docs/network.md). */
enum network { NETWORK_NONE, NETWORK_HOST, NETWORK_GATE, NETWORK_COUNT };

/* How strong a jail is; a higher rung is stronger. The names are what --min-isolation takes.
 * none: a plain subprocess. basic: namespaces and seccomp, but one uid or no cgroup limits or the
 * host's network. full: every wall and every limit. */
enum rung { RUNG_NONE, RUNG_BASIC, RUNG_FULL, RUNG_COUNT };

const char *profile_name(enum profile p);
const char *network_name(enum network n);
const char *rung_name(enum rung r);
/* Each finds the value by name; the error lists the valid names. */
int profile_parse(const char *what, const char *text, enum profile *ret, struct pd_err *e);
int network_parse(const char *what, const char *text, enum network *ret, struct pd_err *e);
int rung_parse(const char *what, const char *text, enum rung *ret, struct pd_err *e);

#define SPEC_BINDS_MAX   32
#define SPEC_PATH_MAX    4096
#define SPEC_NAME_MAX    63
#define SPEC_IMAGE_MAX   511u
#define SPEC_OPTIONS_MAX 4096u
#define SPEC_MEMORY_MIN  (4ULL << 20)
#define SPEC_MEMORY_MAX  (1ULL << 44)
#define SPEC_PIDS_MIN    2
#define SPEC_PIDS_MAX    32768
#define SPEC_CPU_MIN     10 /* thousandths of a core */
#define SPEC_CPU_MAX     1024000
#define SPEC_DISK_MIN    (1ULL << 20)
#define SPEC_DISK_MAX    (1ULL << 44)
#define SPEC_FILES_MIN   64
#define SPEC_FILES_MAX   100000000

struct limits {
    uint64_t memory;    /* bytes, swap included */
    uint64_t pids;      /* processes and threads, init included */
    uint64_t cpu_milli; /* thousandths of a core */
    uint64_t disk;      /* bytes that the writable root may hold */
    uint64_t files;     /* files that the writable root may hold */
};

#define LIMITS_DEFAULT                                                                             \
    ((struct limits){.memory = 512ULL << 20,                                                       \
                     .pids = 256,                                                                  \
                     .cpu_milli = 1000,                                                            \
                     .disk = 1ULL << 30,                                                           \
                     .files = 100000})

struct spec_bind {
    const char *source; /* absolute, on the host */
    const char *target; /* absolute, in the sandbox, without "." or ".." */
    int writable;       /* SPEC_BIND_*: 0 is read-only */
};
#define SPEC_BIND_RW 1
#define SPEC_BIND_IDS                                                                              \
    2 /* writable, and ids on disk are those inside, as in a root of the store                     \
       */

struct spec {
    enum profile profile;
    enum network network;
    enum rung min_rung;
    struct limits limits;
    const char *root_dir;  /* directory that is the root, or "": the host template */
    const char *root_name; /* named root in the store that keeps what is written, or "" */
    const char *image;     /* what the box is made from, as its provider names it; or "" */
    const char *options;   /* a JSON object for the provider alone, or "": today none takes any */
    struct spec_bind binds[SPEC_BINDS_MAX];
    uint32_t bind_count;
};

#define SPEC_DEFAULT                                                                               \
    ((struct spec){                                                                                \
        .limits = LIMITS_DEFAULT, .root_dir = "", .root_name = "", .image = "", .options = ""})

/* Every number in range, every path absolute and clean, the name made of [a-z0-9._-]. PD_DENIED for
 * an image that is the kept root of a sandbox. */
int spec_check(const struct spec *s, struct pd_err *e);
/* Where an engine's broker keeps the roots of sandboxes: repositories that begin so. */
#define SPEC_ROOT_IMAGES "paddock-root-"
/* Is it a reference of an image: printable, without spaces, not like an option? Or PD_INVALID. */
int spec_check_image(const char *image, struct pd_err *e);
/* Is it a name that a root may have? Otherwise PD_INVALID. */
int spec_check_root_name(const char *name, struct pd_err *e);
