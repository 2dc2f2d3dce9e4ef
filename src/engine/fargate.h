/* fargate: sandboxes that are tasks of Amazon ECS, on Fargate (remote.h). */
#pragma once

struct remote_kind;

extern const struct remote_kind fargate_remote;
