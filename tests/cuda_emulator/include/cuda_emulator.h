// Included before the text of a .cu file: CUDA for one CPU thread (see ../__init__.py).
#pragma once
#include "ptx.h"

#include "launch.h"
