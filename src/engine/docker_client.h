/* docker_client: calls of docker's API, each blocking with a deadline.
 *
 * Calls that make something are safe to repeat: after an answer that got lost, what is there is
 * looked at first, by name. Errors have the engine's words and a remedy. */
#pragma once

#include "base/buf.h"
#include "base/clock.h"
#include "engine/broker.h"
#include "engine/docker_api.h"
#include "engine/docker_place.h"
#include "wire/image_ref.h"

struct http;
struct pd_err;

/* How far a pull has come, at most twice within a second: once a second, and at its end. */
typedef void docker_told(void *context, const struct msg_progress *now);

struct docker {
    const struct broker_config *config;
    struct docker_place at;
    struct http *http;
    docker_told *told; /* or NULL */
    void *told_context;
    bool (*is_wanted)(void *context); /* a pull, with told_context; or NULL */
    char place[256];                  /* of the engine, for people */
    char api[16];                     /* version to speak, "" until it is known */
    bool holds_limits;                /* false until it is known */
    bool is_far;                      /* on another machine */
};

/* Where the engine is: --host, else DOCKER_HOST (podman: CONTAINER_HOST), else the usual socket. */
int docker_open(struct docker *d, const struct broker_config *c, struct pd_err *e);
void docker_close(struct docker *d);
/* A connection of its own to the same engine. NULL as http_new. */
struct http *docker_dial(const struct docker *d, struct pd_err *e);
const char *docker_kind(const struct docker *d); /* "docker" or "podman" */

/* PD_NOT_FOUND when there is no such container. */
int docker_inspect(struct docker *d, const char *name, struct docker_container *ret, deadline t,
                   struct pd_err *e);
/* The engine hears of an end a little after the kernel: its state is asked for again until it
 * knows, else nobody would ever learn the reason. Only on this machine. */
void docker_await_end(struct docker *d, struct docker_container *c);
/* The same for a container that has to have these labels. PD_CONFLICT, with the remedy, for one of
 * this name that has not: it is somebody else's, and nothing may be done to it. */
int docker_inspect_ours(struct docker *d, const char *name, const char *owner, const char *box,
                        struct docker_container *ret, deadline t, struct pd_err *e);
/* Makes and starts a container of this name, and waits until it has a pid. One of the same name
 * that has the same labels is what an earlier call made: it is used. */
int docker_create(struct docker *d, const char *name, const struct docker_plan *p,
                  struct docker_container *ret, deadline t, struct pd_err *e);
/* The last words of an init that has ended, or "". */
void docker_last_words(struct docker *d, const char *name, char *out, size_t size, deadline t);
/* SIGKILL; fine when it does not run. */
int docker_kill(struct docker *d, const char *name, deadline t, struct pd_err *e);
/* Removes it with its volumes; fine when it is not there. */
int docker_remove(struct docker *d, const char *name, deadline t, struct pd_err *e);
/* Calls `each` for every container with this label, dead or alive. */
int docker_list(struct docker *d, const char *label, const char *value, docker_each *each,
                void *context, deadline t, struct pd_err *e);
int docker_info(struct docker *d, struct docker_info *ret, deadline t, struct pd_err *e);
/* PD_UNSUPPORTED where the engine would make containers without their limits. */
int docker_need_limits(struct docker *d, deadline t, struct pd_err *e);

/* How many layers the image with this id has, or -1. */
int docker_count_layers(struct docker *d, const char *id, deadline t, struct pd_err *e);
/* Makes sure by the configured policy that the image is there. */
int docker_need_image(struct docker *d, const char *image, char ret_name[IMAGE_TEXT_MAX],
                      deadline t, struct pd_err *e);
/* 1 when there is an image of this name, 0 when there is none. */
int docker_has_image(struct docker *d, const char *name, deadline t, struct pd_err *e);
/* Is the image that this container was made from still the one of that name? 1, or 0. */
int docker_is_current(struct docker *d, const struct docker_container *c, deadline t,
                      struct pd_err *e);
/* Makes the image repository:tag of a container's files; `pause`: it stands still meanwhile. */
int docker_commit(struct docker *d, const char *container, const char *repository, const char *tag,
                  bool pause, deadline t, struct pd_err *e);
/* Gives an image a second name. */
int docker_tag(struct docker *d, const char *image, const char *repository, const char *tag,
               deadline t, struct pd_err *e);
/* Fine when it is not there. */
int docker_remove_image(struct docker *d, const char *name, deadline t, struct pd_err *e);
