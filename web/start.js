// Looks whether the console starts. A page that lost a part on its way, as browsers lose them when the machine's network changes,
// would stay blank: it is loaded again, and when that does not help it says what may.
(() => {
  const COUNT = 'paddock.starts';
  const PAUSES_MS = [200, 1000, 3000];
  const PATIENCE_MS = 20000;
  const isThere = () => 'started' in document.documentElement.dataset; // the console says it
  let isOver = false;

  function look() {
    if (isOver) return;
    isOver = true;
    if (isThere()) {
      sessionStorage.removeItem(COUNT);
      return;
    }
    const tries = Number(sessionStorage.getItem(COUNT));
    if (tries < PAUSES_MS.length) {
      sessionStorage.setItem(COUNT, String(tries + 1));
      setTimeout(() => location.reload(), PAUSES_MS[tries]);
      return;
    }
    sessionStorage.removeItem(COUNT);
    const said = document.createElement('p');
    said.setAttribute('role', 'alert');
    said.textContent = 'The console did not come whole, though it was asked for several times. Is the server there? Then load this page again; '
      + 'a browser from before 2023 may be too old for it. The command line (paddock ps) and the API do not need it.';
    document.body.replaceChildren(said);
  }

  addEventListener('load', look); // whatever was to come has come, or is lost
  setTimeout(look, PATIENCE_MS);
})();
