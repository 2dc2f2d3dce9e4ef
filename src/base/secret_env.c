/* The names that brokers look for. Those of files with credentials are none: a path is no secret.
 */
#include "base/secret_env.h"

#include "base/banned.h"

void secret_env_forget(void)
{
    static const char *const names[] = {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "E2B_API_KEY",       "DAYTONA_API_KEY",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *value = getenv(names[i]);
        if (value)
            explicit_bzero(value, strlen(value));
        unsetenv(names[i]);
    }
}
