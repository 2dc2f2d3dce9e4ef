/* `paddock console`: a link that logs a browser in at the server's console, once. */
#include "base/banned.h"
#include "base/err.h"
#include "client/client.h"

const char console_usage[] =
    "usage: paddock console [--json]\n\n"
    "Prints a link to the server's console in the browser. It logs in as the key of\n"
    "PADDOCK_API_KEY, works once, and for a minute.\n\n"
    "  --json           as JSON, with the time until which it works\n";

int cmd_console(int argc, char **argv)
{
    struct pd_err e;
    json_auto_t *answer = NULL;
    int json = 0;

    if (only_json(argc, argv, &json, &e) < 0)
        return usage_fail(&e);
    auto_remote *r = remote_new(&e);
    struct remote_request q = {.method = HTTP_POST, .target = "/v1/console/link"};
    if (!r || remote_call(r, &q, &answer, &e) < 0)
        return client_fail(&e);
    return (json ? print_json(answer) : print_line(json_field(answer, "url"))) < 0 ? EXIT_FAILED
                                                                                   : 0;
}
