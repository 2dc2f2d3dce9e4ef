/* other_http: http_parser, a second opinion on HTTP, where it is there (HAVE_HTTP_PARSER). Some of
 * its names are ours, too; in here they get others. Include it before net/http.h. */
#pragma once

#ifdef HAVE_HTTP_PARSER
#define http_method  other_method
#define HTTP_GET     OTHER_GET
#define HTTP_HEAD    OTHER_HEAD
#define HTTP_POST    OTHER_POST
#define HTTP_PUT     OTHER_PUT
#define HTTP_PATCH   OTHER_PATCH
#define HTTP_DELETE  OTHER_DELETE
#define HTTP_OPTIONS OTHER_OPTIONS
#include <http_parser.h>
#undef http_method
#undef HTTP_GET
#undef HTTP_HEAD
#undef HTTP_POST
#undef HTTP_PUT
#undef HTTP_PATCH
#undef HTTP_DELETE
#undef HTTP_OPTIONS
#endif
