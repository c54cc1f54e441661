# What comes out of the Python environment: the interpreter, torch (target torch_extension, minor version
# torch_minor) and the UCX wheel (target ucx).

if(NOT DEFINED Python_EXECUTABLE AND NOT DEFINED ENV{VIRTUAL_ENV}
   AND EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

# Directory of an installed package, without importing it.
function(q7x2_package_directory package result)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('${package}').submodule_search_locations[0])"
    OUTPUT_VARIABLE directory OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "Python package '${package}' not found by ${Python_EXECUTABLE}")
  endif()
  set(${result} ${directory} PARENT_SCOPE)
  # Another version of the package is another configuration.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${directory}/__init__.py)
endfunction()

# By path and not by find_package(Torch), which wants a CUDA toolkit for a CUDA build of torch.
# The pybind11 headers are the ones torch ships: types cross the border only within one version.
q7x2_package_directory(torch torch_directory)
file(STRINGS ${torch_directory}/version.py torch_version REGEX "^__version__ = ")
string(REGEX MATCH "[0-9]+\\.[0-9]+" torch_minor "${torch_version}")
add_library(torch_extension INTERFACE)
target_include_directories(torch_extension SYSTEM INTERFACE
  ${torch_directory}/include ${torch_directory}/include/torch/csrc/api/include)
foreach(name torch_python torch_cpu c10)
  add_library(torch_extension::${name} SHARED IMPORTED)
  set_target_properties(torch_extension::${name} PROPERTIES
                        IMPORTED_LOCATION ${torch_directory}/lib/lib${name}.so)
  target_link_libraries(torch_extension INTERFACE torch_extension::${name})
endforeach()

q7x2_package_directory(libucx ucx_directory)
add_library(ucx INTERFACE)
# For C++ alone: no CUDA source includes UCX, and the compiler cache cannot make nvcc's `-isystem=` relative.
foreach(name ucp ucs)
  add_library(ucx::${name} SHARED IMPORTED)
  set_target_properties(ucx::${name} PROPERTIES
                        IMPORTED_LOCATION ${ucx_directory}/lib/lib${name}.so
                        INTERFACE_INCLUDE_DIRECTORIES
                        "$<$<COMPILE_LANGUAGE:CXX>:${ucx_directory}/include>")
  target_link_libraries(ucx INTERFACE ucx::${name})
endforeach()
