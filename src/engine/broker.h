/* broker: the worker of a keeper whose boxes somebody else makes (an engine on this machine).
 *
 * `paddock-remote broker KIND OPTIONS` is started by a keeper in the place of a builder, with two
 * descriptors:
 *   3  the keeper's socket. BUILD, SWEEP, STRIKE, CHECK, THAW, COPY, REMOVE_ROOT, KEEP_ROOT come
 * in, BUILT, DONE and ERROR go out; one request at a time (wire/msg.h) 4  the program init: a file
 * that can be read, and is linked statically and with these options, each with its value as the
 * next argument:
 *   --instance ID   of the keeper; containers are paddock-ID-NAME, labels paddock.owner=ID and
 *                   paddock.box=NAME
 *   --state DIR     doors are below DIR/doors/ID, which the keeper's and its brokers' lives lock
 *   --host URL      of the engine; "" is DOCKER_HOST, or the kind's usual socket
 *   --runtime NAME  the engine's runtime, "" is its own choice
 *   --pull POLICY   never, missing or always
 *   --auth FILE     credentials of registries, as `docker login` writes them; "" is none
 *   --owner UID     who may make commands' groups in a container's cgroup directory; 0: only root
 * When the keeper closes its socket the broker ends every box of the keeper, and itself. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct pd_err;

enum pull_policy { PULL_NEVER, PULL_MISSING, PULL_ALWAYS, PULL_COUNT };

struct broker_config {
    bool podman; /* else docker */
    const char *instance;
    const char *state_dir;
    const char *host;
    const char *runtime;
    const char *auth_file;
    enum pull_policy pull;
    uid_t owner;
};

#define BROKER_CONFIG_DEFAULT                                                                      \
    ((struct broker_config){.instance = "",                                                        \
                            .state_dir = "",                                                       \
                            .host = "",                                                            \
                            .runtime = "",                                                         \
                            .auth_file = "",                                                       \
                            .pull = PULL_MISSING})

#define BROKER_SOCKET_FD 3
#define BROKER_INIT_FD   4

/* Sets one of the options above by its name ("--pull"). Values are borrowed. PD_INVALID names the
 * value and what would be valid. */
int broker_option(struct broker_config *c, const char *name, const char *value, struct pd_err *e);

/* Says what the engine is and has, in lines "NAME VALUE", or "error TEXT". Returns the status of
 * the program. */
int engine_check(const struct broker_config *c);

/* Serves the keeper until it closes its socket; then cleans up. Does not return. */
_Noreturn void docker_main(const struct broker_config *c, int sock, int init_fd);
