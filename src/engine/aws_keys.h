/* aws_keys: reads credentials for AWS from the forms in which they are kept. Pure; aws_chain asks
 * the places. */
#pragma once

#include "engine/sigv4.h"

#include <stddef.h>

/* Checks what becomes a part of headers: PD_INVALID where an id, a secret or a token is empty, too
 * long, or has bytes that none has. Errors never have a secret in them. */
int aws_keys_set(struct aws_keys *ret, const char *id, const char *secret, const char *token,
                 struct pd_err *e);

/* A profile of a file such as ~/.aws/credentials; `config`: of one such as ~/.aws/config, where
 * sections are "[profile NAME]" (and "[default]"). PD_NOT_FOUND when it has no keys there. */
int aws_keys_read_profile(const char *text, size_t len, const char *profile, bool config,
                          struct aws_keys *ret, struct pd_err *e);
/* One value of a profile, such as "region"; "" when there is none. */
void aws_profile_value(const char *text, size_t len, const char *profile, bool config,
                       const char *name, char *ret, size_t size);

/* What the endpoints of containers and of instances answer: a JSON object. */
int aws_keys_read_json(const void *json, size_t len, struct aws_keys *ret, struct pd_err *e);
/* "2026-11-18T20:00:00Z"; -1 when it is none. */
time_t aws_time_read(const char *text);

/* May credentials be asked for at this address? https anywhere; http only of this machine and of
 * the addresses that AWS gives such endpoints. `ret_base` gets scheme, host and port, `ret_target`
 * the rest. */
int aws_container_url(const char *url, char ret_base[280], char ret_target[1024], struct pd_err *e);

/* The name of an instance's role: it becomes a part of a path. */
int aws_role_read(const char *text, size_t len, char ret[129], struct pd_err *e);
