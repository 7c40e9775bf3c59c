package io.gridflow.spark;

import org.apache.spark.sql.catalyst.analysis.NoSuchFunctionException;
import org.apache.spark.sql.connector.catalog.FunctionCatalog;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.functions.UnboundFunction;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The functions that a session calls by a catalog's name once {@code spark.sql.catalog.<name>} is this class. */
public final class Functions implements FunctionCatalog {
    private static final String PACK = "pack";
    private String name;

    @Override
    public void initialize(String catalog, CaseInsensitiveStringMap options) {
        name = catalog;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Identifier[] listFunctions(String[] namespace) {
        return namespace.length > 0 ? new Identifier[0] : new Identifier[] {Identifier.of(namespace, PACK)};
    }

    @Override
    public UnboundFunction loadFunction(Identifier wanted) throws NoSuchFunctionException {
        if (wanted.namespace().length > 0 || !wanted.name().equals(PACK)) {
            throw new NoSuchFunctionException(wanted);
        }
        return new Pack();
    }
}
