/* The table of the E2B door: every path that it answers. docs/e2b.md says what they do; a test
 * compares the two. */
#include "api/e2b.h"

#include "base/banned.h"

#define C "/sandboxes/{sandboxID}"

const struct route e2b_control_routes[] = {
    {"GET", C, e2b_get, ROUTE_SANDBOX, NULL},
};
const unsigned e2b_control_route_count = sizeof e2b_control_routes / sizeof *e2b_control_routes;

#define P "/process.Process/"
#define F "/filesystem.Filesystem/"

const struct route e2b_envd_routes[] = {
    {"GET", "/health", envd_health, ROUTE_OPEN, NULL},
};
const unsigned e2b_envd_route_count = sizeof e2b_envd_routes / sizeof *e2b_envd_routes;
