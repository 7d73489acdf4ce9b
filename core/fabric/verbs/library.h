// The system's verbs library, loaded while the program runs, so that hosts without it run too.
// Calls go through this table; that of the emulator is loaded in the same way.
#pragma once

#include <memory>
#include <string>

#include "core/fabric/verbs/abi.h"

namespace standfast::verbs {

// An entry of the GID table with its type, as _ibv_query_gid_ex fills it.
struct GidEntryEx {
  Gid gid;
  std::uint32_t gid_index;
  std::uint32_t port_num;
  std::uint32_t gid_type;
  std::uint32_t ndev_ifindex;
};
static_assert(sizeof(GidEntryEx) == 32);

struct Library {
  std::string path;
  Device** (*get_device_list)(int* count);
  void (*free_device_list)(Device** list);
  const char* (*get_device_name)(Device* device);
  Context* (*open_device)(Device* device);
  int (*close_device)(Context* context);
  int (*query_device)(Context* context, DeviceAttr* attr);
  int (*query_port)(Context* context, std::uint8_t port, PortAttr* attr);
  int (*query_gid)(Context* context, std::uint8_t port, int index, Gid* gid);
  Pd* (*alloc_pd)(Context* context);
  int (*dealloc_pd)(Pd* pd);
  Mr* (*reg_mr)(Pd* pd, void* memory, std::size_t bytes, int access);
  int (*dereg_mr)(Mr* mr);
  Cq* (*create_cq)(Context* context, int entries, void* user, CompChannel* channel, int vector);
  int (*destroy_cq)(Cq* cq);
  Qp* (*create_qp)(Pd* pd, QpInitAttr* attr);
  int (*modify_qp)(Qp* qp, QpAttr* attr, int mask);
  int (*destroy_qp)(Qp* qp);
  // Null where the library is too old, or Apple's: then a GID's type is unknown.
  int (*query_gid_ex)(Context* context, std::uint32_t port, std::uint32_t index, GidEntryEx* entry,
                      std::uint32_t flags, std::size_t entry_bytes);
};

// The names under which this system has it, best first; null ends the list.
extern const char* const kLibraryNames[];
extern const char* const kLibraryHint;

// Loads `path`, or the system's if it is "". Stays loaded: a library's threads may not be
// unloaded under them. Throws VerbsError: no_library, library_unusable.
std::shared_ptr<const Library> load_library(const std::string& path);

}  // namespace standfast::verbs
