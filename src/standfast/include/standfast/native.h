/* A group's core, for native code of other distributions (standfast-mlx): plain C, so that it asks
 * for no library of ours, no nanobind and no C++ library in common.
 *
 * standfast._core.Group.native() returns a capsule of this name, which holds a standfast_native. A
 * change of what is here is a new version, in the name too. */
#ifndef STANDFAST_NATIVE_H
#define STANDFAST_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STANDFAST_NATIVE_VERSION 1
#define STANDFAST_NATIVE_CAPSULE "standfast.native.1"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct standfast_group standfast_group;
typedef struct standfast_failure standfast_failure;

enum standfast_kind {
  STANDFAST_ALL_REDUCE = 0,
  STANDFAST_ALL_GATHER,
  STANDFAST_REDUCE_SCATTER,
  STANDFAST_SEND,
  STANDFAST_RECV,
  STANDFAST_KINDS
};

enum standfast_reduction {
  STANDFAST_SUM = 0,
  STANDFAST_MAX,
  STANDFAST_MIN,
  STANDFAST_PROD,
  STANDFAST_REDUCTIONS
};

enum standfast_dtype {
  STANDFAST_BOOL = 0,
  STANDFAST_INT8,
  STANDFAST_INT16,
  STANDFAST_INT32,
  STANDFAST_INT64,
  STANDFAST_UINT8,
  STANDFAST_UINT16,
  STANDFAST_UINT32,
  STANDFAST_UINT64,
  STANDFAST_FLOAT16,
  STANDFAST_BFLOAT16,
  STANDFAST_FLOAT32,
  STANDFAST_FLOAT64,
  STANDFAST_COMPLEX64,
  STANDFAST_DTYPES
};

typedef struct standfast_operation {
  int32_t kind;
  int32_t dtype;
  int32_t reduction;
  int32_t peer;   /* of a send or recv */
  uint64_t count; /* elements: of src; of dst for reduce_scatter and recv */
  const void* src;
  void* dst; /* all_reduce: may be src */
} standfast_operation;

typedef struct standfast_native {
  uint32_t version;
  uint32_t bytes; /* of this struct */
  int32_t rank;
  int32_t size;
  standfast_group* group;
  /* The capsule's share of the group goes with the capsule; this gives the caller one of its own.
   */
  standfast_group* (*retain)(standfast_group*);
  void (*release)(standfast_group*);
  /* Runs one operation in this thread, which must not hold the GIL; null when it is done. While it
   * waits it asks `interrupted` (null: nobody) at least ten times a second; true ends the group. */
  standfast_failure* (*run)(standfast_group*, const standfast_operation*,
                            bool (*interrupted)(void));
  /* What the core knows of a failure, without Python: a line, cut to `bytes` with its 0. */
  void (*describe)(const standfast_failure*, char* text, size_t bytes);
  /* A new reference to a standfast._core.Failure; needs the GIL. */
  void* (*as_python)(const standfast_failure*);
  void (*forget)(standfast_failure*);
} standfast_native;

#ifdef __cplusplus
}
#endif

#endif
