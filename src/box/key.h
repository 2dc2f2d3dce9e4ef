/* key: how the key of a link comes into a box: in a file that is removed, or from whoever is the
 * first to say it at a socket, so that no engine has it in its records. */
#pragma once

#include "base/clock.h"
#include "link/proof.h"

struct pd_err;

/* Of engines that give a box nothing else: 64 hexadecimal digits. */
#define KEY_VARIABLE "PADDOCK_BOX_KEY"
/* Likewise the key of letters in a bucket (letters.h). */
#define SEAL_VARIABLE "PADDOCK_BOX_SEAL"

/* `path` is the file, "env" for the variable, or "-": then it waits until `t` for somebody with a
 * key at JOIN_KEY. */
int key_read(const char *path, uint8_t ret[LINK_KEY], deadline t, struct pd_err *e);
/* That of a variable, which is gone then. */
int key_read_variable(const char *variable, uint8_t ret[LINK_KEY], struct pd_err *e);
