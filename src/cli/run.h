/* run: what `paddock run` was asked for and what came of it; shared by its providers. */
#pragma once

#include "base/clock.h"
#include "cli/run_network.h"
#include "cli/stream.h"
#include "router/mode.h"
#include "wire/spec.h"

#include <stdbool.h>
#include <stdint.h>

struct pd_err;

#define RUN_ENV_MAX 256

enum run_provider { PROVIDER_JAIL, PROVIDER_LOCAL };

struct run_options {
    enum run_provider provider;
    bool provider_given;
    enum run_mode mode;    /* MODE_NONE: not asked for */
    char mode_reason[224]; /* why that provider, with a mode */
    struct spec spec;
    struct run_egress egress;
    char paths[SPEC_BINDS_MAX][2][SPEC_PATH_MAX + 1]; /* of the binds */
    char root[SPEC_PATH_MAX + 1];
    const char *image;   /* what --image named, or NULL */
    const char *workdir; /* "" = the default */
    uint32_t uid, gid;
    bool user_given;
    uint64_t timeout_ns; /* 0 = none */
    uint64_t output;     /* bytes, 0 = no limit */
    uint64_t file_size;  /* 0 = no limit */
    const char *env[RUN_ENV_MAX];
    unsigned env_count;
    int json;
    const char *jail_only; /* an option was given that only a jail can honour */
    char **argv;
    int argc;
};

/* Why a command was stopped, or NULL. */
#define STOP_TIMEOUT "timeout"
#define STOP_OOM     "oom"
#define STOP_PIDS    "pids"
#define STOP_DISK    "disk"
#define STOP_OUTPUT  "output"
#define STOP_SYSCALL "syscall"

struct run_result {
    int status; /* as wait(2) gives it */
    const char *stopped_by;
    uint64_t time_ns, cpu_usec, max_rss;
    int process_id;
    const char *provider;
    enum rung rung;
    const char *reason; /* why the rung is not RUNG_FULL, or NULL when it is */
    struct run_network network;
    struct capture out, err; /* with --json */
};

/* 0 when *ret is complete, -1 when the command could not be run. */
int run_in_jail(struct run_options *o, struct run_result *ret, struct pd_err *e);
int run_locally(struct run_options *o, struct run_result *ret, struct pd_err *e);

/* What --user takes. */
int run_parse_user(struct run_options *o, const char *text, struct pd_err *e);
/* With --image: finds it in the store, and lets it fill what the options left open. */
int run_image_apply(struct run_options *o, struct pd_err *e);
/* The ids of a user in the text of a passwd file; ids that a sandbox has. Pure. 0, or -1. */
int run_image_user(const char *text, const char *name, uint32_t *ret_uid, uint32_t *ret_gid);
