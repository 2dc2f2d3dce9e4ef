/* cloudrun: sandboxes that are executions of a job of Google Cloud Run (remote.h). */
#pragma once

struct remote_kind;

extern const struct remote_kind cloudrun_remote;
