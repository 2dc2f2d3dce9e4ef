/* broker: the worker of a keeper whose boxes somebody else makes (an engine, on this machine or
 * elsewhere).
 *
 * `paddock-remote broker KIND OPTIONS` is started by a keeper in the place of a builder, with three
 * descriptors:
 *
 *   3   the keeper's socket. BUILD, SWEEP, STRIKE, CHECK, THAW, COPY, REMOVE_ROOT, KEEP_ROOT come
 *       in, BUILT, DONE and ERROR go out; one request at a time (wire/msg.h)
 *   4   the program init: a file that can be read, and is linked statically
 *   5   likewise paddock-box, for containers on another machine
 *
 * and with these options, each with its value as the next argument:
 *
 *   --instance ID   of the keeper; containers are paddock-ID-NAME, labels paddock.owner=ID and
 *                   paddock.box=NAME
 *   --state DIR     doors are below DIR/doors/ID, which the keeper's and its brokers' lives lock
 *   --host URL      of the engine; "" is DOCKER_HOST, or the kind's usual socket
 *   --certs DIR     ca.pem, cert.pem and key.pem for an engine elsewhere; "" is DOCKER_CERT_PATH
 *   --lease S       how long a box elsewhere waits for this machine before it ends itself
 *   --runtime NAME  the engine's runtime, "" is its own choice
 *   --pull POLICY   never, missing or always
 *   --auth FILE     credentials of registries, as `docker login` writes them; "" is none
 *   --owner UID     who may make commands' groups in a container's cgroup directory; 0: only root
 *   --set WORD=VALUE  a setting of this kind's own (remote.h); may be there several times
 * When the keeper closes its socket the broker ends every box of the keeper, and itself; one
 * elsewhere whose watch lives is left to the next keeper. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pd_err;
struct remote_kind;

enum pull_policy { PULL_NEVER, PULL_MISSING, PULL_ALWAYS, PULL_COUNT };

#define BROKER_SETTINGS_MAX 32u

struct broker_config {
    const struct remote_kind *kind;
    bool podman; /* of docker's two engines the other one */
    const char *instance;
    const char *state_dir;
    const char *host;
    const char *cert_path;
    const char *runtime;
    const char *auth_file;
    enum pull_policy pull;
    uid_t owner;
    uint32_t lease;                            /* s */
    const char *settings[BROKER_SETTINGS_MAX]; /* WORD=VALUE */
    unsigned setting_count;
};

#define BROKER_CONFIG_DEFAULT                                                                      \
    ((struct broker_config){.instance = "",                                                        \
                            .state_dir = "",                                                       \
                            .host = "",                                                            \
                            .cert_path = "",                                                       \
                            .runtime = "",                                                         \
                            .auth_file = "",                                                       \
                            .pull = PULL_MISSING,                                                  \
                            .lease = 900})

#define BROKER_SOCKET_FD 3
#define BROKER_INIT_FD   4
#define BROKER_BOX_FD    5

#define BROKER_LEASE_LEAST 1u
#define BROKER_LEASE_MOST  (30u * 24 * 3600)

/* Sets one of the options above by its name ("--pull"). Values are borrowed. PD_INVALID names the
 * value and what would be valid. */
int broker_option(struct broker_config *c, const char *name, const char *value, struct pd_err *e);

/* The value of a setting of this kind's own; "" when it was not given. */
const char *broker_setting(const struct broker_config *c, const char *word);

/* Says what docker's or podman's engine is and has, in lines "NAME VALUE", or "error TEXT". Returns
 * the status of the program. */
int engine_check(const struct broker_config *c);

/* Serves the keeper until it closes its socket; then cleans up. Does not return. */
_Noreturn void docker_main(const struct broker_config *c, int sock, int init_fd);
