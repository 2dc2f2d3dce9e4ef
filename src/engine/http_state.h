/* http_state: what the requests and the streams of http share, and nobody else sees. */
#pragma once

#include <curl/curl.h>

struct http {
    CURL *curl;
    char *base;
    char *where; /* for error texts: the socket's path or the base */
    char error[CURL_ERROR_SIZE];
    char forbidden[32]; /* why an address was not dialled; "": none was refused */
};
