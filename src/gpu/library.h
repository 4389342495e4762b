// SPDX-License-Identifier: Apache-2.0
// Finding a shared library and its symbols at run time.
#pragma once

#include <string>

#include "base/result.h"

namespace infercluster::gpu {

// The environment's word where it has one (it may be empty: "not there"), else `name`.
std::string library_name(const char* environment_variable, const char* name);

// A library that stays loaded: drivers cannot be unloaded.
class Library {
 public:
  // Errors (unsupported): not found, or not loadable; the message is the loader's.
  static Result<Library> open(const std::string& name);

  // Null where the library does not export it.
  template <typename Function>
  Function function(const char* symbol) const {
    return reinterpret_cast<Function>(find(symbol));
  }

 private:
  explicit Library(void* handle) : handle_(handle) {}
  [[nodiscard]] void* find(const char* symbol) const;
  void* handle_;
};

}  // namespace infercluster::gpu
