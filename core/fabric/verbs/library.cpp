#include "core/fabric/verbs/library.h"

#include <dlfcn.h>

#include "core/fabric/verbs/trouble.h"

namespace standfast::verbs {
namespace {

// What dlerror() said, without a null.
std::string loader_text() {
  const char* text = dlerror();
  return text != nullptr ? text : "the loader gave no reason";
}

void* open_first(const std::string& path, std::string* opened) {
  std::string said;
  const auto attempt = [&](const char* name) {
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr)
      *opened = name;
    else
      said += (said.empty() ? "" : "; ") + loader_text();
    return handle;
  };
  void* handle = nullptr;
  if (!path.empty()) {
    handle = attempt(path.c_str());
  } else {
    for (const char* const* name = kLibraryNames; *name != nullptr && handle == nullptr; ++name) {
      handle = attempt(*name);
    }
  }
  if (handle != nullptr) return handle;
  throw VerbsError({"no_library", "RDMA is not available: no verbs library: " + said,
                    path.empty() ? kLibraryHint : "STANDFAST_RDMA_LIBRARY names the library", "",
                    0});
}

class Symbols {
 public:
  Symbols(void* handle, const std::string& path) : handle_(handle), path_(path) {}

  template <class Function>
  void optional(Function*& to, const char* name) const {
    to = reinterpret_cast<Function*>(dlsym(handle_, name));
  }
  template <class Function>
  void need(Function*& to, const char* name) const {
    optional(to, name);
    if (to != nullptr) return;
    throw VerbsError({"library_unusable",
                      "RDMA is not available: " + path_ + " has no function " + name,
                      "it is no verbs library, or too old a one", "", 0});
  }

 private:
  void* handle_;
  const std::string& path_;
};

}  // namespace

std::shared_ptr<const Library> load_library(const std::string& path) {
  auto library = std::make_shared<Library>();
  void* handle = open_first(path, &library->path);
  const Symbols symbols(handle, library->path);
  symbols.need(library->get_device_list, "ibv_get_device_list");
  symbols.need(library->free_device_list, "ibv_free_device_list");
  symbols.need(library->get_device_name, "ibv_get_device_name");
  symbols.need(library->open_device, "ibv_open_device");
  symbols.need(library->close_device, "ibv_close_device");
  symbols.need(library->query_device, "ibv_query_device");
  symbols.need(library->query_port, "ibv_query_port");
  symbols.need(library->query_gid, "ibv_query_gid");
  symbols.need(library->alloc_pd, "ibv_alloc_pd");
  symbols.need(library->dealloc_pd, "ibv_dealloc_pd");
  symbols.need(library->reg_mr, "ibv_reg_mr");
  symbols.need(library->dereg_mr, "ibv_dereg_mr");
  symbols.need(library->create_cq, "ibv_create_cq");
  symbols.need(library->destroy_cq, "ibv_destroy_cq");
  symbols.need(library->create_qp, "ibv_create_qp");
  symbols.need(library->modify_qp, "ibv_modify_qp");
  symbols.need(library->destroy_qp, "ibv_destroy_qp");
  symbols.optional(library->query_gid_ex, "_ibv_query_gid_ex");
  return library;
}

}  // namespace standfast::verbs
