// Runs probe.py in CPython compiled to WebAssembly: node run.mjs <pyodide's folder> <checkout> <packages>
import { pathToFileURL } from "node:url";

const [pyodide, root, packages] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: pyodide, env: { PYTHONDONTWRITEBYTECODE: "1", HOME: "/home" } });
python.FS.mkdir("/checkout");
python.FS.mount(python.FS.filesystems.NODEFS, { root }, "/checkout");
python.FS.mkdir("/packages");
python.FS.mount(python.FS.filesystems.NODEFS, { root: packages }, "/packages");
python.runPython(`
import runpy, sys
sys.argv = ["probe.py", "/checkout", "/packages"]
runpy.run_path("/checkout/tests/pythons/probe.py", run_name="__main__")
`);
