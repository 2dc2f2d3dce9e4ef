/* secret_env: credentials of backends that stand in the environment (AWS_SECRET_ACCESS_KEY ...).
 * Those of files with credentials are none: a path is no secret.
 *
 * Brokers and carriers use them. Guardian and keeper, which start brokers, keep them in an
 * anonymous file that is mapped nowhere; every other process overwrites them before it does
 * anything else. So they are in the memory and in /proc/PID/environ of nobody but those who need
 * them. */
#pragma once

/* Overwrites their values where they stand, which is what /proc/PID/environ shows, and removes the
 * names. */
void secret_env_forget(void);

/* Moves them into a file, and forgets them. Returns its descriptor, which programs that are started
 * do not get; -ENODATA when there are none, or -errno: they are forgotten in any case. */
int secret_env_seal(void);

/* In a process of its own, which is about to become a program: sets those of such a file that the
 * backend uses. A negative descriptor, or a backend that has none, sets none. */
void secret_env_unseal(int fd, const char *backend);
