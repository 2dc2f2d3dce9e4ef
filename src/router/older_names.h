/* older_names: variables of older systems that say what the router's rules say now.
 *
 * USE_CLOUDRUN_JOBS_SANDBOX=true is a flag for the provider cloudrun, of
 * CLOUDRUN_JOBS_ROLLOUT_PERCENTAGE of the users (100 without it). Without SANDBOX_GCP_PROJECT, or
 * where cloudrun is not configured, the flag is there and off, and says why: such systems went on
 * with their default. Names that choose the default provider (SANDBOX_MODE, SANDBOX_PROVIDER,
 * STIGMER_EXECUTION_MODE) are aliases of the setting sandbox_mode. */
#pragma once

#include "router/rules.h"

/* Adds the flags. `env` ends with NULL. PD_INVALID, naming the variable, its value and what is
 * valid; then *r is as it was. Pure. */
int older_names_read(const char *const *env, const struct route_provider *providers, unsigned count,
                     struct router_rules *r, struct pd_err *e);
