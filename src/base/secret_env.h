/* secret_env: credentials of backends that stand in the environment (AWS_SECRET_ACCESS_KEY ...).
 * The processes that use them are few; all others overwrite them before they do anything else. */
#pragma once

/* Overwrites their values where they stand, which is what /proc/PID/environ shows, and removes the
 * names. */
void secret_env_forget(void);
