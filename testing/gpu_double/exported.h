// SPDX-License-Identifier: Apache-2.0
#pragma once

// A function that the double exports under its C name. The libraries hide all else.
#define IC_EXPORT extern "C" __attribute__((visibility("default"), used))
