// SPDX-License-Identifier: Apache-2.0
#include "gpu/library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace infercluster::gpu {

std::string library_name(const char* environment_variable, const char* name) {
  const char* const word = std::getenv(environment_variable);  // NOLINT(concurrency-mt-unsafe): read only
  return word != nullptr ? word : name;
}

Result<Library> Library::open(const std::string& name) {
  if (name.empty()) return Error(ErrorCode::unsupported, "it is switched off by the environment");
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const reason = ::dlerror();
    return Error(ErrorCode::unsupported, reason != nullptr ? reason : name + " cannot be loaded");
  }
  return Library(handle);
}

void* Library::find(const char* symbol) const {
  return ::dlsym(handle_, symbol);
}

}  // namespace infercluster::gpu
