// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>
#include <thread>

namespace infercluster {

// Starts a thread that blocks all signals (they belong to the program's own threads) and bears `name` (15 bytes at
// most).
std::thread start_thread(std::string_view name, std::function<void()> body);

// True in a child process that was forked after this library was first used: every engine call is an error there,
// since rings, threads and memory marked MADV_DONTFORK stayed with the parent.
bool in_forked_child();
// Remembers the calling process as the owner; the first call wins, later ones in the same process do nothing.
void remember_process();

}  // namespace infercluster
