# moe_mpi.so, which the command loads when mpirun started it (src/comm/world.h): so neither the
# command nor libmoe.so needs an MPI where it is run. Beside the command in the build, under lib/moe
# where it is installed.
set(MOE_MPI AUTO CACHE STRING "Build the module that joins processes over MPI: AUTO, ON or OFF")
set_property(CACHE MOE_MPI PROPERTY STRINGS AUTO ON OFF)

add_custom_target(moe_mpi_module)
set(MOE_HAS_MPI OFF)
if(NOT MOE_MPI STREQUAL OFF)
  # The C++ bindings of old are not used.
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    set(MOE_HAS_MPI ON)
  elseif(MOE_MPI STREQUAL ON)
    message(FATAL_ERROR "MOE_MPI is ON, but there is no MPI to build with (scripts/deps.sh mpi)")
  endif()
endif()
if(MOE_HAS_MPI)
  add_library(moe_mpi MODULE src/comm/mpi_module/mpi_module.cpp)
  set_target_properties(moe_mpi PROPERTIES PREFIX "")
  target_link_libraries(moe_mpi PRIVATE moe_compile MPI::MPI_CXX Threads::Threads)
  add_dependencies(moe_mpi_module moe_mpi)
endif()
