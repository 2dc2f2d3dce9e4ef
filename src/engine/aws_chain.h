/* aws_chain: where a broker has its credentials for AWS from, in the order of AWS's own tools:
 *
 *   AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN   (unless AWS_PROFILE is set)
 *   ~/.aws/credentials (AWS_SHARED_CREDENTIALS_FILE), profile AWS_PROFILE or default
 *   ~/.aws/config (AWS_CONFIG_FILE), likewise
 *   AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI: the role of a task
 *   the instance's metadata (IMDSv2), unless AWS_EC2_METADATA_DISABLED: the role of an instance
 *
 * Those that end are asked for again before they do; while that fails the old ones are used as long
 * as they last. Not there: web identity, single sign-on, assumed roles, programs that print keys.
 */
#pragma once

#include "base/clock.h"
#include "engine/sigv4.h"

struct pd_err;

struct aws_chain {
    struct aws_keys keys;
    const char *from; /* where they are from, for people; NULL: none yet */
    time_t asked;
};

/* Credentials that are good now; borrowed until the next call. NULL with PD_DENIED, which names the
 * places that were asked. */
const struct aws_keys *aws_chain_get(struct aws_chain *c, deadline t, struct pd_err *e);
/* They were refused: the next call asks anew. */
void aws_chain_forget(struct aws_chain *c);

/* The region: AWS_REGION, AWS_DEFAULT_REGION, the profile's. "" when none is set. */
void aws_chain_region(char *ret, size_t size);
